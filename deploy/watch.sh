#!/bin/sh
# Maps every .tif in a folder, and those that arrive later, on any system with a shell:
#
#     sh deploy/watch.sh incoming maps [OPTIONS of iic-segment-raster]
#
# Scenes that were mapped before are left alone; one that fails, because it is not whole yet, is tried again. PAUSE is
# the number of seconds between two looks at the folder.
incoming=$1 maps=$2
shift 2
mkdir -p "$maps"
while :; do
    for scene in "$incoming"/*.tif; do
        # Without a scene the pattern stands for itself.
        [ -e "$scene" ] && iic-segment-raster --quiet "$incoming"/*.tif "$maps" "$@"
        break
    done
    sleep "${PAUSE:-60}"
done
