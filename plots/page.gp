# SPDX-License-Identifier: Apache-2.0
#
# The page that every picture begins with: its format and size, and lengths and fonts that are those of a
# picture of 1600 x 1000 and grow with it.

scale = width / 1600.0 < height / 1000.0 ? width / 1600.0 : height / 1000.0
X(pixels) = pixels * scale / width
Y(pixels) = pixels * scale / height
# Points; SVG takes pixels for them.
font(points) = format eq "svg" ? sprintf("sans-serif,%.2f", points * scale * 4 / 3) \
    : sprintf("Sans,%.2f", points * scale)

# Of the dot at a peak: terminals differ.
dot_size = format eq "svg" ? 0.45 : format eq "pdf" ? 0.6 : 0.8

if (format eq "svg") {
    set terminal svg size width,height fixed font font(13) noenhanced background "#FFFFFF"
} else {
    if (format eq "pdf") {
        # 96 pixels an inch, and letters and lines as large as in a PNG
        set terminal pdfcairo size width / 96.0,height / 96.0 fontscale 0.75 linewidth 1.5 font font(13) \
            noenhanced background "#FFFFFF"
    } else {
        set terminal pngcairo size width,height font font(13) noenhanced background "#FFFFFF"
    }
}
set encoding utf8
set output output
