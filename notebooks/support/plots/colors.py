"""The colors of the pictures, from Okabe and Ito (2008). Color-blind readers can tell them apart."""

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
SKY, GRAY, LIGHT, INK = "#CDE6F5", "#8A8A8A", "#EFEFEF", "#222222"
SAND = "#FBE5B6"
