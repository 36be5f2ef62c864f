"""Colours of every picture: those of Okabe and Ito (2008), which colour-blind readers can tell apart."""

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
SKY, GREY, LIGHT, INK = "#CDE6F5", "#8A8A8A", "#EFEFEF", "#222222"
SAND = "#FBE5B6"
