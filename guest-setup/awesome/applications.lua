-- The installed applications, from GLib. GLib reads the .desktop files, and honours NoDisplay,
-- Hidden, OnlyShowIn, NotShowIn, TryExec, Terminal and the field codes of Exec. No shell runs any of
-- it.
local lgi = require("lgi")
local GLib, Gio = lgi.GLib, lgi.Gio
-- Since GLib 2.86 its class for .desktop files is in a namespace of its own.
pcall(lgi.require, "GioUnix", "2.0")

local gstring = require("gears.string")
local naughty = require("naughty")
local icons = require("menubar.utils")

local applications = {}

-- OnlyShowIn is compared with this; programs that are started see it as well.
if (os.getenv("XDG_CURRENT_DESKTOP") or "") == "" then
    GLib.setenv("XDG_CURRENT_DESKTOP", "awesome", true)
end

-- An application is in the first group of which it names a category.
local GROUPS = {
    { "Development", "Development" },
    { "Education", "Education" },
    { "Science", "Science" },
    { "Game", "Games" },
    { "Graphics", "Graphics" },
    { "AudioVideo", "Sound and video" },
    { "Network", "Internet" },
    { "Office", "Office" },
    { "Settings", "Settings" },
    { "System", "System" },
    { "Utility", "Accessories" },
}
local OTHER = "Other"

local LONGEST = 48 -- characters of a name; more would make the menu wider than a small screen

-- Control characters, line separators, and what reverses the direction of text, in UTF-8.
local UNPRINTABLE = {
    "[\1-\31\127]", "\194[\128-\159]", "\216\156", "\226\128[\142\143]",
    "\226\128[\168-\174]", "\226\129[\166-\169]",
}

-- Return a text for a menu: one line, of limited length, shown literally.
function applications.printable(text)
    for _, pattern in ipairs(UNPRINTABLE) do
        text = text:gsub(pattern, " ")
    end
    text = text:gsub("^%s+", ""):gsub("%s+$", "")
    local count, kept = 0, {}
    for character in text:gmatch("[%z\1-\127\194-\244][\128-\191]*") do
        count = count + 1
        if count > LONGEST then
            kept[LONGEST] = "…"
            break
        end
        kept[count] = character
    end
    -- A word joiner: awful.menu takes "&x" for a key to press.
    return (table.concat(kept):gsub("&", "&\226\129\160"))
end

-- Return the path of an application's icon, or nil. Only names are looked up: a path in a .desktop
-- file could be a device or a FIFO, and reading it would stop the window manager.
local function icon_of(app)
    local icon = app:get_icon()
    local name = icon and icon:to_string()
    if not name or not name:match("^[%w._-]+$") then
        return nil
    end
    local path = icons.lookup_icon(name)
    if not path or Gio.File.new_for_path(path):query_file_type({}, nil) ~= "REGULAR" then
        return nil
    end
    return path
end

local function launch(app)
    local done, problem = app:launch({}, nil)
    if not done then
        naughty.notify({
            preset = naughty.config.presets.critical,
            title = "Cannot start " .. app:get_display_name(), -- naughty escapes titles only
            text = gstring.xml_escape(tostring(problem)),
        })
    end
end

local function group_of(app)
    local categories = ";" .. (app:get_categories() or "") .. ";"
    for _, group in ipairs(GROUPS) do
        if categories:find(";" .. group[1] .. ";", 1, true) then
            return group[2]
        end
    end
    return OTHER
end

local function by_name(left, right)
    return left[1]:lower() < right[1]:lower()
end

-- Return the applications as they are now, as entries for awful.menu: a submenu for each group
-- that has any, by name.
function applications.entries()
    local groups = {}
    for _, app in ipairs(Gio.AppInfo.get_all()) do
        if app:should_show() then
            local group = group_of(app)
            local name = applications.printable(app:get_display_name())
            if name == "" then
                name = applications.printable(app:get_id())
            end
            groups[group] = groups[group] or {}
            table.insert(groups[group], { name, function() launch(app) end, icon_of(app) })
        end
    end
    local entries = {}
    for name, group in pairs(groups) do
        table.sort(group, by_name)
        table.insert(entries, { name, group })
    end
    table.sort(entries, by_name)
    return entries
end

return applications
