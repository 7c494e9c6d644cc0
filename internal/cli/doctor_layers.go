package cli

import (
	"os"

	"berth/internal/cli/show"
	"berth/internal/host/block"
	"berth/internal/sys/text"
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
	show.Layers(a.Out, text.Columns(a.Out), l)
	return nil
}
