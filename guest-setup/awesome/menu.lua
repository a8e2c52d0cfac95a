-- The main menu: applications, and commands that end the session. It is built each time that it is
-- opened, so that it has the applications that were installed meanwhile.
local awful = require("awful")
local beautiful = require("beautiful")
local gstring = require("gears.string")
local naughty = require("naughty")

local applications = require("applications")

local menu = { terminal = { "xfce4-terminal" }, files = { "thunar" } }

-- Run a command, a list of arguments. If it fails, show its error messages.
function menu.run(command)
    local started = awful.spawn.easy_async(command, function(_, errors, _, status)
        if status ~= 0 then
            menu.complain(command, errors)
        end
    end)
    if type(started) == "string" then
        menu.complain(command, started)
    end
end

function menu.complain(command, problem)
    naughty.notify({
        preset = naughty.config.presets.critical,
        title = table.concat(command, " "), -- naughty escapes titles only
        text = gstring.xml_escape(problem),
    })
end

-- As the user: logind asks polkit, which lets the user of the active session shut down. It must not
-- ask for a password, since no window could show the question.
local function machine(verb)
    return function()
        menu.run({ "systemctl", "--no-ask-password", verb })
    end
end

-- Return the entries of the menu. What ends the session is in a submenu: one click more.
function menu.entries()
    return {
        { "Applications", applications.entries() },
        { "Terminal", function() menu.run(menu.terminal) end },
        { "Files", function() menu.run(menu.files) end },
        { "Log out", { { "Log out now", function() awesome.quit() end } } },
        { "Restart", { { "Restart now", machine("reboot") } } },
        { "Shut down", { { "Shut down now", machine("poweroff") } } },
    }
end

local open

function menu.toggle(where)
    if open and open.wibox.visible then
        open:hide()
        open = nil
        return
    end
    open = awful.menu({ items = menu.entries(), theme = { width = beautiful.menu_width } })
    open:show(where)
end

function menu.hide()
    if open then
        open:hide()
        open = nil
    end
end

return menu
