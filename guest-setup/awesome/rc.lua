-- The desktop of vm-setup.sh, for Awesome 4.3: a panel with menu, tags, tasks and clock; windows
-- with title bars, that float or tile. vm-setup.sh writes this file anew, and keeps one that was
-- changed beside it, as rc.lua.~1~.
pcall(require, "luarocks.loader")
local awful = require("awful")
require("awful.autofocus")
local beautiful = require("beautiful")
local gears = require("gears")
local gstring = require("gears.string")
local hotkeys = require("awful.hotkeys_popup")
local naughty = require("naughty")
local wibox = require("wibox")

-- A mistake in this file is shown, not only written where nobody looks.
local function show_error(problem)
    naughty.notify({
        preset = naughty.config.presets.critical,
        title = "Awesome met a problem",
        text = gstring.xml_escape(tostring(problem)),
    })
end

if awesome.startup_errors then
    show_error(awesome.startup_errors)
end
local showing = false
awesome.connect_signal("debug::error", function(problem)
    if not showing then
        showing = true
        show_error(problem)
        showing = false
    end
end)

beautiful.init(gears.filesystem.get_configuration_dir() .. "theme.lua")
local menu = require("menu")

local super = "Mod4"
awful.layout.layouts = { awful.layout.suit.floating, awful.layout.suit.tile, awful.layout.suit.max }

-- What systemd and the message bus start for this session must know its display.
awful.spawn({
    "dbus-update-activation-environment", "--systemd", "DISPLAY", "XAUTHORITY", "XDG_CURRENT_DESKTOP",
})

-- The panel -------------------------------------------------------------------------------------

local tag_buttons = gears.table.join(
    awful.button({}, 1, function(tag) tag:view_only() end),
    awful.button({}, 3, awful.tag.viewtoggle)
)
local task_buttons = gears.table.join(
    awful.button({}, 1, function(c)
        if c == client.focus then
            c.minimized = true
        else
            c:emit_signal("request::activate", "tasklist", { raise = true })
        end
    end),
    awful.button({}, 2, function(c) c:kill() end)
)

local task_widget = {
    {
        {
            {
                { id = "icon_role", widget = wibox.widget.imagebox },
                margins = 5, widget = wibox.container.margin,
            },
            { id = "text_role", widget = wibox.widget.textbox },
            layout = wibox.layout.fixed.horizontal,
        },
        left = 4, right = 8, widget = wibox.container.margin,
    },
    id = "background_role", widget = wibox.container.background,
}

local function menu_button(s)
    local button = wibox.widget({
        {
            { markup = "<b>Menu</b>", widget = wibox.widget.textbox },
            left = 12, right = 12, widget = wibox.container.margin,
        },
        bg = beautiful.bg_focus, fg = beautiful.fg_focus, widget = wibox.container.background,
    })
    button:buttons(awful.button({}, 1, function()
        menu.toggle({ coords = { x = s.geometry.x, y = s.geometry.y + beautiful.panel_height } })
    end))
    return button
end

local function layout_box(s)
    local box = awful.widget.layoutbox(s)
    box:buttons(gears.table.join(
        awful.button({}, 1, function() awful.layout.inc(1) end),
        awful.button({}, 3, function() awful.layout.inc(-1) end)
    ))
    return box
end

local function make_panel(s)
    s.prompt = awful.widget.prompt()
    s.panel = awful.wibar({ position = "top", screen = s, height = beautiful.panel_height })
    s.panel:setup({
        layout = wibox.layout.align.horizontal,
        {
            layout = wibox.layout.fixed.horizontal,
            spacing = 6,
            menu_button(s),
            awful.widget.taglist({
                screen = s, filter = awful.widget.taglist.filter.all, buttons = tag_buttons,
                style = { font = "DejaVu Sans Bold 11" },
            }),
            s.prompt,
        },
        awful.widget.tasklist({
            screen = s, filter = awful.widget.tasklist.filter.currenttags, buttons = task_buttons,
            layout = { layout = wibox.layout.flex.horizontal, max_widget_size = 260, spacing = 4 },
            widget_template = task_widget,
        }),
        {
            layout = wibox.layout.fixed.horizontal,
            spacing = 8,
            wibox.widget.systray(),
            wibox.widget.textclock("%a %e %b, %H:%M", 30),
            {
                layout_box(s),
                top = 5, bottom = 5, right = 8, widget = wibox.container.margin,
            },
        },
    })
end

awful.screen.connect_for_each_screen(function(s)
    gears.wallpaper.set(beautiful.wallpaper_color)
    awful.tag({ "1", "2", "3", "4" }, s, awful.layout.layouts[1])
    make_panel(s)
end)
screen.connect_signal("property::geometry", function()
    gears.wallpaper.set(beautiful.wallpaper_color)
end)

-- Keys and buttons --------------------------------------------------------------------------------

root.buttons(gears.table.join(
    awful.button({}, 1, menu.hide),
    awful.button({}, 3, function() menu.toggle() end)
))

local function key(modifiers, name, action, group, description)
    return awful.key(modifiers, name, action, { group = group, description = description })
end

local global_keys = gears.table.join(
    key({ super }, "s", hotkeys.show_help, "desktop", "show the keys"),
    key({ super }, "w", function() menu.toggle() end, "desktop", "open the menu"),
    key({ super, "Control" }, "r", awesome.restart, "desktop", "read the configuration again"),
    key({ super, "Shift" }, "q", function() awesome.quit() end, "desktop", "log out"),
    key({ super }, "Return", function() menu.run(menu.terminal) end, "programs", "a terminal"),
    key({ super }, "e", function() menu.run(menu.files) end, "programs", "files"),
    key({ super }, "r", function() awful.screen.focused().prompt:run() end, "programs",
        "run a command"),
    key({ super }, "j", function() awful.client.focus.byidx(1) end, "windows", "the next one"),
    key({ super }, "k", function() awful.client.focus.byidx(-1) end, "windows", "the one before"),
    key({ "Mod1" }, "Tab", function()
        awful.client.focus.byidx(1)
        if client.focus then
            client.focus:raise()
        end
    end, "windows", "the next one, in front"),
    key({ super }, "space", function() awful.layout.inc(1) end, "windows", "float, tile or fill"),
    key({ super }, "Left", awful.tag.viewprev, "tags", "the one before"),
    key({ super }, "Right", awful.tag.viewnext, "tags", "the next one")
)
for number = 1, 4 do
    local function on_tag(action)
        return function()
            local tag = awful.screen.focused().tags[number]
            if tag then
                action(tag)
            end
        end
    end
    global_keys = gears.table.join(
        global_keys,
        key({ super }, "#" .. number + 9, on_tag(function(tag) tag:view_only() end), "tags",
            "show tag " .. number),
        key({ super, "Shift" }, "#" .. number + 9, on_tag(function(tag)
            if client.focus then
                client.focus:move_to_tag(tag)
            end
        end), "tags", "move the window to tag " .. number)
    )
end
root.keys(global_keys)

local client_keys = gears.table.join(
    key({ super }, "q", function(c) c:kill() end, "windows", "close"),
    key({ "Mod1" }, "F4", function(c) c:kill() end, "windows", "close"),
    key({ super }, "f", function(c) c.fullscreen = not c.fullscreen end, "windows", "full screen"),
    key({ super }, "m", function(c) c.maximized = not c.maximized end, "windows", "maximize"),
    key({ super }, "n", function(c) c.minimized = true end, "windows", "minimize")
)

local function activate(c)
    c:emit_signal("request::activate", "mouse_click", { raise = true })
end

local client_buttons = gears.table.join(
    awful.button({}, 1, function(c) menu.hide() activate(c) end),
    awful.button({ super }, 1, function(c) activate(c) awful.mouse.client.move(c) end),
    awful.button({ super }, 3, function(c) activate(c) awful.mouse.client.resize(c) end)
)

-- Windows -----------------------------------------------------------------------------------------

awful.rules.rules = {
    {
        rule = {},
        properties = {
            border_width = beautiful.border_width,
            border_color = beautiful.border_normal,
            focus = awful.client.focus.filter,
            raise = true,
            keys = client_keys,
            buttons = client_buttons,
            screen = awful.screen.preferred,
            placement = awful.placement.no_overlap + awful.placement.no_offscreen,
        },
    },
    { rule_any = { type = { "normal", "dialog" } }, properties = { titlebars_enabled = true } },
}

client.connect_signal("manage", function(c)
    if awesome.startup and not c.size_hints.user_position and not c.size_hints.program_position then
        awful.placement.no_offscreen(c)
    end
end)

client.connect_signal("request::titlebars", function(c)
    local buttons = gears.table.join(
        awful.button({}, 1, function() activate(c) awful.mouse.client.move(c) end),
        awful.button({}, 3, function() activate(c) awful.mouse.client.resize(c) end)
    )
    local function action(text, run)
        local button = wibox.widget({
            { text = text, align = "center", forced_width = 28, widget = wibox.widget.textbox },
            widget = wibox.container.background,
        })
        button:buttons(awful.button({}, 1, nil, run))
        return button
    end
    awful.titlebar(c, { size = 28 }):setup({
        layout = wibox.layout.align.horizontal,
        {
            { awful.titlebar.widget.iconwidget(c), margins = 4, widget = wibox.container.margin },
            buttons = buttons,
            layout = wibox.layout.fixed.horizontal,
        },
        {
            { align = "center", widget = awful.titlebar.widget.titlewidget(c) },
            buttons = buttons,
            layout = wibox.layout.flex.horizontal,
        },
        {
            action("–", function() c.minimized = true end),
            action("□", function() c.maximized = not c.maximized end),
            action("×", function() c:kill() end),
            layout = wibox.layout.fixed.horizontal,
        },
    })
end)

client.connect_signal("focus", function(c) c.border_color = beautiful.border_focus end)
client.connect_signal("unfocus", function(c) c.border_color = beautiful.border_normal end)
