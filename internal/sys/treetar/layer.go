package treetar

import (
	"archive/tar"
	"os"
	"slices"
	"time"
)

// inOrder is each in the order of the names.
func inOrder(f *os.File, do func(name string) error, failed func(error) error) error {
	var all []string
	if err := each(f, func(name string) error { all = append(all, name); return nil }, failed); err != nil {
		return err
	}
	slices.Sort(all)
	for _, name := range all {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// whiteout writes the mark of something that this layer removes (image-spec, layer.md). It has no time and no owner of its own.
func (p *packer) whiteout(name string) error {
	return p.header(&tar.Header{Name: name, Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

// isOpaque reports whether a folder hides what lower layers have in it.
func isOpaque(fd int) bool {
	v, err := attr(fd, "trusted.overlay.opaque")
	return err == nil && string(v) == "y"
}
