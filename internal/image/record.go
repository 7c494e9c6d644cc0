package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/sys/refuse"
)

// List returns the images sorted by name. It includes records that cannot be read, with Broken set: one broken record
// must not hide the others.
func (s Store) List() ([]Record, error) {
	files, err := os.ReadDir(s.records())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var all []Record
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		r, err := readRecord(filepath.Join(s.records(), f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir
		}
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Get returns the image called name, or name with ":latest" appended. Errors: refuse.NotFound if there is none,
// refuse.Failed if its record is broken.
func (s Store) Get(name string) (Record, error) {
	r, err := s.find(name)
	if err == nil && r.Broken != "" {
		return Record{}, &refuse.Error{
			Kind: refuse.Failed, What: fmt.Sprintf("the record of image %s is broken: %s", r.Name, r.Broken),
			Remedy: "import the image again under this name, or remove it: berth image rm " + r.Name,
		}
	}
	return r, err
}

// find is Get, but returns broken records too.
func (s Store) find(name string) (Record, error) {
	if err := checkName(name); err != nil {
		return Record{}, err
	}
	for _, n := range []string{name, name + ":latest"} {
		r, err := readRecord(s.record(n))
		if !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
	return Record{}, &refuse.Error{Kind: refuse.NotFound, What: fmt.Sprintf("there is no image %s", name), Remedy: s.Hint(name, "")}
}

// readRecord reads a record's file. Wrong content is reported in Broken; the error is the kernel's.
func readRecord(file string) (Record, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if why := r.parse(data, filepath.Base(file)); why != "" {
		// The name for berth image rm: one from which recordFile makes this file name again.
		base := strings.TrimSuffix(filepath.Base(file), ".json")
		name, err := url.PathUnescape(base)
		if err != nil || recordFile(name) != base+".json" {
			name = base
		}
		if recordFile(name) != base+".json" {
			why = "no image has a file of this name: remove " + file
		}
		return Record{Name: name, Broken: why}, nil
	}
	return r, nil
}

// parse reads a record and returns what is wrong with it, or "". file is the name of its file.
func (r *Record) parse(data []byte, file string) string {
	if err := json.Unmarshal(data, r); err != nil {
		if len(data) == 0 {
			return "its file is empty"
		}
		return "its file is damaged"
	}
	switch {
	case r.Version > recordVersion:
		return "a newer berth wrote it"
	case r.Version < 1 || recordFile(r.Name) != file || len(r.Layers) == 0:
		return "its file is damaged"
	}
	for _, l := range r.Layers {
		if _, err := parseDigest(l); err != nil {
			return "its file is damaged"
		}
	}
	return ""
}

// referenced returns the layers of all images except but. unsure is true if a record is broken: that image's layers are
// unknown.
func (s Store) referenced(but string) (layers map[string]bool, unsure bool, err error) {
	all, err := s.List()
	if err != nil {
		return nil, false, err
	}
	layers = map[string]bool{}
	for _, r := range all {
		if r.Name == but {
			continue
		}
		unsure = unsure || r.Broken != ""
		for _, l := range r.Layers {
			layers[l] = true
		}
	}
	return layers, unsure, nil
}
