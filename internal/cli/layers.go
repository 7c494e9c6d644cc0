package cli

import (
	"fmt"
	"os"
	"strings"

	"berth/internal/block"
)

// layers prints the block devices under a device or folder, and on which of them rates and weights act.
func (a *app) layers(path string) error {
	find := block.LayersUnder
	if fi, err := os.Stat(path); err == nil && fi.Mode()&os.ModeDevice != 0 {
		find = block.Layers
	}
	l, err := find("/sys", path)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(l)
	}
	a.printLayer(l, 0)
	return nil
}

func (a *app) printLayer(l *block.Layer, depth int) {
	rates, weights := l.Throttle, l.Weight
	if rates == "" {
		rates = "act here"
	}
	if weights == "" {
		weights = "act here, by BFQ or io.cost; the scheduler is " + l.Scheduler
	}
	indent := strings.Repeat("  ", depth)
	fmt.Fprintf(a.Out, "%s%s  %s, %s\n", indent, l.Title, l.Kind, l.Number)
	wrap(a.Out, columns(a.Out), len(indent)+12, indent+"    rates   ", rates)
	wrap(a.Out, columns(a.Out), len(indent)+12, indent+"    weights ", weights)
	for _, b := range l.Below {
		a.printLayer(b, depth+1)
	}
}
