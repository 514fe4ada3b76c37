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

if (format eq "svg") {
    set terminal svg size width,height fixed font font(13) noenhanced background "#FFFFFF"
} else {
    set terminal pngcairo size width,height font font(13) noenhanced background "#FFFFFF"
}
set encoding utf8
set output output
