# SPDX-License-Identifier: Apache-2.0
#
# The memory timeline: bytes of the device that hold values, stacked by category, with allocated bytes as a line above;
# the other places that are used below, and the lanes as a strip; one column of panels if predicted alone, two if
# measured stands beside, on the same axes.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp timeline.gp`; settings.gp, which plot.c
# writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle                      two lines at the top
#   panels                              1 or 2; names with _1, _2 below are by panel
#   heading_P facts_P                   left and right of the line above a panel
#   observed_P                          whether anything is known of memory
#   end                                 seconds at the right end
#   phases_P                            "forward 0 33.2 backward 33.2 120.6": name, begin, end
#   places                              "device host" or "device"; the device is the first
#   categories                          of all places, from the bottom of the stack up
#   PLACE_categories                    from the bottom of the stack up
#   PLACE_unit PLACE_highest            unit of the numbers ("GiB"); the highest that is drawn
#   PLACE_limit PLACE_limit_text        line of the limit; "" if it lies above the picture
#   PLACE_peak_x_P, _y_P, _text_P       the marked peak of values; "" if none
#   PLACE_top_P                         the most that is allocated, beside a peak
#   lanes groups                        "compute h2d d2h", of ranks "0:compute 1:compute"; op groups that occur
#   busy_P                              "99% 3% 0%" by lane
#
# Data: PLACE_P has a block of time and running sum for every category, and one of allocated bytes; lanes_P one for every
# lane and group, in which a lane is one unit high. Lengths are in pixels of a picture of 1600 x 1000 and grow
# with it.

# Letters of the longest word.
longest(text) = (most = 0, sum [i = 1:words(text)] (most = strlen(word(text, i)) > most ? strlen(word(text, i)) \
    : most, 0), most)
letter = 8.4 # pixels of a letter

# From the bottom: legend, time axis, lanes, the other places with the last one lowest, device, phases, headings,
# title. Several other places share a larger band.
lane_count = words(lanes)
lower_count = words(places) - 1
lanes_bottom = Y(146)
row_pixels = lane_count <= 8 ? 36 : lane_count <= 16 ? 22 : 15
lanes_top = lanes_bottom + Y(row_pixels * lane_count + 4)
lower_share = lower_count > 1 ? 0.24 / lower_count : 0.14
lower_height = lower_share * (1 - lanes_top) > Y(64) ? lower_share * (1 - lanes_top) : Y(64)
lower_bottom(i) = lanes_top + Y(26) + (lower_count - i) * (lower_height + Y(26))
device_bottom = lower_bottom(0)
device_top = 1 - Y(142)
# The caption of a place is beside its axis, or above if another place's caption would meet it there.
captions_beside = letter * (longest(places) + strlen(" (GiB)")) < lower_height / Y(1) + 20

legend_left = X(104)
lane_pixels = 9.6 * longest(lanes) + 16 # of the longest name
left_edge = lane_pixels > 104 ? X(lane_pixels) : X(104)
right_edge = 1 - X(66)
gap = X(86)
panel_width = (right_edge - left_edge - (panels - 1) * gap) / panels
panel_left(p) = left_edge + (p - 1) * (panel_width + gap)
panel_right(p) = panel_left(p) + panel_width

# The least of 1, 2, 5, 10, ... that is no less.
ten(x) = 10.0 ** floor(log10(x))
step_of(x) = x <= ten(x) ? ten(x) : x <= 2 * ten(x) ? 2 * ten(x) \
    : x <= 5 * ten(x) ? 5 * ten(x) : 10 * ten(x)

set multiplot
set style textbox opaque fillcolor rgb "#FFFFFF" noborder margins 0.3, 0.3

# A rectangle of a legend and its text; moves legend_x on.
legend_x = 0.0
legend_next(text) = legend_x + X(24 + 9.6 * strlen(text) + 24)
tag = 0

# Everything at screen coordinates in one empty plot.
set lmargin at screen 0
set rmargin at screen 1
set bmargin at screen 0
set tmargin at screen 1
unset border
unset tics
unset key
set xrange [0:1]
set yrange [0:1]
set label title at screen left_edge, 1 - Y(36) left font font(19) textcolor rgb colour_text
set label subtitle at screen left_edge, 1 - Y(68) left font font(12.5) textcolor rgb colour_quiet
do for [p = 1:panels] {
    set label value("heading_" . p) at screen panel_left(p), 1 - Y(104) left font font(14.5) \
        textcolor rgb colour_text
    set label value("facts_" . p) at screen panel_right(p), 1 - Y(104) right \
        font font(panels == 1 ? 12 : 10.5) \
        textcolor rgb colour_quiet
}

legend_x = legend_left
legend_y = Y(56)
set label "memory" at screen legend_x - X(14), legend_y right font font(12) textcolor rgb colour_quiet
do for [category in categories] {
    tag = tag + 1
    caption = value("label_" . category)
    set object tag rectangle from screen legend_x, legend_y - Y(7) \
        to screen legend_x + X(16), legend_y + Y(7) \
        fillstyle solid noborder fillcolor rgb value("colour_" . category)
    set label caption at screen legend_x + X(24), legend_y left font font(12) \
        textcolor rgb colour_text
    legend_x = legend_next(caption)
}
set arrow from screen legend_x, legend_y to screen legend_x + X(20), legend_y nohead \
    linecolor rgb colour_allocated linewidth 1.5 * scale
set label "allocated" at screen legend_x + X(28), legend_y left font font(12) textcolor rgb colour_text
legend_x = legend_left
legend_y = Y(24)
set label "ops" at screen legend_x - X(14), legend_y right font font(12) textcolor rgb colour_quiet
do for [group in groups] {
    tag = tag + 1
    caption = value("label_ops_" . group)
    set object tag rectangle from screen legend_x, legend_y - Y(7) \
        to screen legend_x + X(16), legend_y + Y(7) \
        fillstyle solid noborder fillcolor rgb value("colour_ops_" . group)
    set label caption at screen legend_x + X(24), legend_y left font font(12) \
        textcolor rgb colour_text
    legend_x = legend_next(caption)
}
plot -1 notitle
unset object
unset arrow
unset label

# Panels. Heights and places of labels are reckoned in pixels of the panel, from its lower left.
tics_font = font(12) # a function is not taken there
set tics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set border 3 linecolor rgb colour_quiet linewidth scale
set style fill solid noborder
panel_pixels = panel_width / X(1)
do for [p = 1:panels] {
    phases = value("phases_" . p)
    set lmargin at screen panel_left(p)
    set rmargin at screen panel_right(p)
    set xrange [0:end]

    do for [number = 0:lower_count] {
        place = word(places, number + 1)
        is_device = number == 0
        stacked = value(place . "_categories")
        count = words(stacked)
        file = sprintf("%s/%s_%d", folder, place, p)
        bottom = lower_bottom(number)
        top = is_device ? device_top : bottom + lower_height
        height_pixels = (top - bottom) / Y(1)
        highest = value(place . "_highest")
        axis = highest * height_pixels / (height_pixels - 42)
        pixels_of(y) = y / axis * height_pixels
        set bmargin at screen bottom
        set tmargin at screen top
        set yrange [0:axis]
        set xtics out nomirror autofreq format ""
        set ytics out nomirror step_of(axis * (is_device ? (height_pixels > 600 ? 0.1 : 60 / height_pixels) : 32 / height_pixels)) format (p == 1 ? "%g" : "")
        set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
        if (p == 1) {
            caption = sprintf("%s (%s)", place, value(place . "_unit"))
            if (is_device || captions_beside) {
                set label caption center rotate by 90 \
                    at screen X(30), (bottom + top) / 2 font font(13) textcolor rgb colour_text
            } else {
                set label caption left at screen left_edge + X(6), top + Y(9) font font(12) \
                    textcolor rgb colour_text
            }
        }

        # Phases: a band above the device, and a thin line down through each panel.
        do for [i = 1:words(phases) / 3] {
            phase = word(phases, 3 * i - 2)
            from_x = real(word(phases, 3 * i - 1))
            to_x = real(word(phases, 3 * i))
            if (is_device) {
                set object i rectangle from first from_x, screen top + Y(3) \
                    to first to_x, screen top + Y(23) \
                    fillstyle solid noborder fillcolor rgb value("colour_phase_" . phase)
                if ((to_x - from_x) / end * panel_pixels > letter * strlen(phase) + 8) {
                    set label phase at first (from_x + to_x) / 2, screen top + Y(13) \
                        center font font(11.5) textcolor rgb colour_text
                }
            }
            if (i > 1) {
                set arrow from first from_x, graph 0 to first from_x, graph 1 nohead front \
                    linecolor rgb colour_text linewidth scale dashtype 3
            }
        }

        # The peak of values, its text to the side that has room and above what is allocated, with a leader; above the
        # line of the limit where the two would meet. The text of the limit keeps out of its way.
        limit = value(place . "_limit")
        limit_pixels = limit eq "" ? -1000 : pixels_of(real(limit))
        text_from = -1000
        text_to = -1000
        text_pixels = -1000
        peak_x = value(sprintf("%s_peak_x_%d", place, p))
        if (!value(sprintf("observed_%d", p))) {
            set label "not observed in this step" at graph 0.5, graph 0.5 center font font(12) \
                textcolor rgb colour_quiet
        }
        if (peak_x ne "") {
            peak_x = real(peak_x)
            peak_y = real(value(sprintf("%s_peak_y_%d", place, p)))
            caption = value(sprintf("%s_peak_text_%d", place, p))
            text_length = letter * strlen(caption)
            at_pixels = peak_x / end * panel_pixels
            text_from = at_pixels + 9 + text_length < panel_pixels ? at_pixels + 9 \
                : at_pixels - 9 - text_length > 0 ? at_pixels - 9 - text_length \
                : (panel_pixels - text_length) / 2
            text_to = text_from + text_length
            top_y = value(sprintf("%s_top_%d", place, p))
            text_pixels = pixels_of(top_y > peak_y ? top_y : peak_y) + 15
            if (abs(text_pixels - limit_pixels) < 15) {
                text_pixels = limit_pixels + 15
            }
            if (text_pixels - pixels_of(peak_y) > 20) {
                set arrow from first peak_x, first peak_y to graph at_pixels / panel_pixels, \
                    graph text_pixels / height_pixels nohead front dashtype 1 \
                    linecolor rgb colour_text linewidth scale
            }
            set label "" at first peak_x, first peak_y front \
                point pointtype 7 pointsize dot_size * scale linecolor rgb colour_text
            if (text_from > at_pixels || text_to > at_pixels + 20) {
                set label caption at graph text_from / panel_pixels, graph text_pixels / height_pixels \
                    left front boxed font font(12) textcolor rgb colour_text
            } else {
                set label caption at graph text_to / panel_pixels, graph text_pixels / height_pixels \
                    right front boxed font font(12) textcolor rgb colour_text
            }
        }
        if (limit ne "") {
            caption = value(place . "_limit_text")
            text_length = letter * strlen(caption) + 12
            set arrow from graph 0, first real(limit) to graph 1, first real(limit) nohead front \
                linecolor rgb colour_limit linewidth 1.5 * scale dashtype 2
            if (abs(limit_pixels + 14 - text_pixels) > 22 || text_from > text_length) {
                set label caption at graph 6 / panel_pixels, \
                    graph (limit_pixels + 14) / height_pixels left front boxed \
                    font font(12) textcolor rgb colour_limit
            } else {
                limit_y = text_to < panel_pixels - text_length ? limit_pixels + 14 \
                    : limit_pixels - 15
                set label caption at graph 1 - 6 / panel_pixels, \
                    graph limit_y / height_pixels right front boxed \
                    font font(12) textcolor rgb colour_limit
            }
        }
        plot for [i = count:1:-1] file index i - 1 using 1:2 with filledcurves y=0 \
                linecolor rgb value("colour_" . word(stacked, i)) notitle, \
            file index count using 1:2 with lines linewidth 1.5 * scale \
                linecolor rgb colour_allocated notitle
        unset object
        unset arrow
        unset label
    }

    # Lanes, the first on top.
    set bmargin at screen lanes_bottom
    set tmargin at screen lanes_top
    set yrange [0:lane_count]
    unset ytics
    unset grid
    set xtics out nomirror autofreq format "%g"
    set label "time in the step (seconds)" center \
        at screen (panel_left(p) + panel_right(p)) / 2, lanes_bottom - Y(56) font font(13) \
        textcolor rgb colour_text
    set border 1
    do for [i = 1:lane_count] {
        base = lane_count - i
        set object i rectangle from graph 0, first base + 0.06 to graph 1, first base + 0.86 \
            behind fillstyle solid noborder fillcolor rgb colour_idle
        if (p == 1) {
            set label word(lanes, i) at screen left_edge - X(10), first base + 0.46 right \
                font font(row_pixels > 30 ? 12 : 0.4 * row_pixels + 3) textcolor rgb colour_text
        }
        set label word(value("busy_" . p), i) at screen panel_right(p) + X(8), first base + 0.46 \
            left font font(row_pixels > 30 ? 12 : 0.4 * row_pixels + 3) textcolor rgb colour_quiet
    }
    set label "busy" at screen panel_right(p) + X(8), screen lanes_top + Y(8) left \
        font font(11) textcolor rgb colour_quiet
    group_count = words(groups)
    plot for [i = 1:lane_count] for [g = group_count:1:-1] sprintf("%s/lanes_%d", folder, p) \
        index (i - 1) * group_count + g - 1 using 1:(lane_count - i + 0.06 + 0.8 * $2) \
        with filledcurves y=(lane_count - i + 0.06) \
        linecolor rgb value("colour_ops_" . word(groups, g)) notitle
    unset object
    unset label
    set border 3
}
unset multiplot
set output
is_drawn = 1
