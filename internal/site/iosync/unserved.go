package iosync

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
)

// unserved begins the names of files that say why a file system of this host is not served. No file system has such a name.
const unserved = ".unserved-"

func unservedFile(l layout.Layout, filesystem string) string {
	return filepath.Join(filepath.Dir(place.Dir(l, filesystem)), unserved+filesystem)
}

// NoteUnserved notes for Show why an entry of berthd's file cannot be served: nothing holds the limits of its nodes that an earlier agent
// did not set. why is nil when it is served.
func NoteUnserved(l layout.Layout, conf want.Filesystem, why error) error {
	path := unservedFile(l, conf.Name)
	if why == nil {
		return file.Remove(path)
	}
	h := Held{Filesystem: conf.Name, Way: conf.WayOf(), Failed: "nothing new is set here until this is mended: " + why.Error(), Since: time.Now().UTC()}
	if was, err := readUnserved(path); err == nil && was.Failed == h.Failed {
		return nil // it is tried again each second
	}
	text, err := json.Marshal(h)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return err
	}
	return file.WriteForBoot(path, append(text, '\n'), 0o644)
}

func readUnserved(path string) (h Held, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = jsonfile.File{Path: path, Is: "why a file system is not served", Remedy: "berthd writes it anew when it starts"}.Decode(bytes.TrimSpace(data), &h)
	}
	return h, err
}

// showUnserved returns the file systems that are not served, each without a node.
func showUnserved(l layout.Layout) (all []Held, err error) {
	files, err := filepath.Glob(unservedFile(l, "*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, f := range files {
		h, err := readUnserved(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is served now
		}
		if err != nil {
			return nil, fmt.Errorf("read why a file system is not served: %w", err)
		}
		all = append(all, h)
	}
	return all, nil
}

// sweepUnserved forgets that file systems were not served which berthd's file does not name any more.
func sweepUnserved(l layout.Layout, served []want.Filesystem) error {
	files, err := filepath.Glob(unservedFile(l, "*"))
	failed := []error{err}
	for _, f := range files {
		name := strings.TrimPrefix(filepath.Base(f), unserved)
		if !slices.ContainsFunc(served, func(s want.Filesystem) bool { return s.Name == name }) {
			failed = append(failed, file.Remove(f))
		}
	}
	return errors.Join(failed...)
}
