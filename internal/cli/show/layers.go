package show

import (
	"fmt"
	"io"
	"strings"

	"berth/internal/host/block"
	"berth/internal/sys/text"
)

// Layers writes the block devices under a device or folder, and on which of them rates and weights act.
func Layers(out io.Writer, width int, l *block.Layer) { layer(out, width, l, 0) }

func layer(out io.Writer, width int, l *block.Layer, depth int) {
	rates, weights := l.Throttle, l.Weight
	if rates == "" {
		rates = "act here"
	}
	if weights == "" {
		weights = "act here, by BFQ or io.cost; the scheduler is " + l.Scheduler
	}
	indent := strings.Repeat("  ", depth)
	fmt.Fprintf(out, "%s%s  %s, %s\n", indent, l.Title, l.Kind, l.Number)
	text.Wrap(out, width, len(indent)+12, indent+"    rates   ", rates)
	text.Wrap(out, width, len(indent)+12, indent+"    weights ", weights)
	for _, b := range l.Below {
		layer(out, width, b, depth+1)
	}
}
