-- Colours, fonts and sizes.
local dpi = require("beautiful.xresources").apply_dpi
local layouts = require("gears.filesystem").get_themes_dir() .. "default/layouts/"

return {
    font = "DejaVu Sans 11",

    bg_normal = "#22303c",
    fg_normal = "#e8eef2",
    bg_focus = "#3f6f8f",
    fg_focus = "#ffffff",
    bg_urgent = "#b5533c",
    fg_urgent = "#ffffff",
    bg_minimize = "#2c3d4a",
    fg_minimize = "#9fb0bb",
    bg_systray = "#22303c",

    wallpaper_color = "#5b7f8c",
    panel_height = dpi(32),

    useless_gap = dpi(3),
    border_width = dpi(1),
    border_normal = "#22303c",
    border_focus = "#3f6f8f",
    border_marked = "#b5533c",

    taglist_spacing = dpi(4),
    tasklist_spacing = dpi(4),
    layout_floating = layouts .. "floatingw.png",
    layout_tile = layouts .. "tilew.png",
    layout_max = layouts .. "maxw.png",

    titlebar_bg_normal = "#2c3d4a",
    titlebar_bg_focus = "#3f6f8f",

    menu_height = dpi(28),
    menu_width = dpi(220),
    menu_border_width = dpi(1),
    menu_border_color = "#3f6f8f",

    notification_font = "DejaVu Sans 11",
    notification_max_width = dpi(480),

    -- Of Debian and Fedora both.
    icon_theme = "Adwaita",
}
