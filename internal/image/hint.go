package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/nearest"
)

// mostNamed is how many stored images a message names.
const mostNamed = 8

// Hint says what a text that is no image was probably meant to be: a stored image without its oci:, a folder without
// dir:, an archive that is not imported yet. Else it says which images are stored. dir is where a relative path begins.
func (s Store) Hint(text, dir string) string {
	all, err := s.List()
	if err != nil {
		all = nil // whoever asks has an error to tell already
	}
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	_, after, _ := strings.Cut(text, ":") // docker://full, image:full
	for _, t := range []string{text, strings.TrimLeft(after, "/"), strings.TrimSuffix(text, ":latest"), text + ":latest"} {
		if slices.Contains(names, t) {
			return "did you mean oci:" + t + "?"
		}
	}
	path := text
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if info, err := os.Stat(path); err == nil && text != "" {
		switch _, err := os.Stat(filepath.Join(path, "oci-layout")); {
		case info.IsDir() && err == nil:
			return "did you mean oci-layout:" + text + "?"
		case info.IsDir():
			return "did you mean dir:" + text + "?"
		default:
			return "is it an archive? berth image import " + text + " NAME stores it, then oci:NAME is the image"
		}
	}
	if meant := nearest.To(text, names); meant != "" {
		return "did you mean oci:" + meant + "?"
	}
	return stored(names)
}

// stored names the images that there are.
func stored(names []string) string {
	if len(names) == 0 {
		return "no image is stored here; berth image import ARCHIVE NAME stores one"
	}
	more := ""
	if len(names) > mostNamed {
		names, more = names[:mostNamed], " and more (berth image ls)"
	}
	return "stored are oci:" + strings.Join(names, ", oci:") + more
}
