package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/sys/suggest"
)

// mostNamed is the most stored images that a message lists.
const mostNamed = 8

// Hint guesses which image the user meant by a text that names none: a stored image without its oci:, a folder without dir:, or
// an archive that is not imported yet. Else it lists the stored images. Relative paths start at dir.
func (s Store) Hint(text, dir string) string {
	all, err := s.List()
	if err != nil {
		all = nil // the caller already reports an error
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
	ref := strings.TrimPrefix(text, "docker://")
	if host, _, ok := strings.Cut(ref, "/"); ok && strings.Contains(strings.TrimLeft(host, "."), ".") {
		return "berth image pull " + ref + " fetches it from that registry, then oci:" + ref + " is the image"
	}
	if meant := suggest.To(text, names); meant != "" {
		return "did you mean oci:" + meant + "?"
	}
	return stored(names, text)
}

// stored lists the stored images for a message about a text that names none.
func stored(names []string, text string) string {
	if len(names) == 0 {
		ref := "REF"
		if name, _, _ := strings.Cut(text, ":"); name != "" && !strings.ContainsAny(name, "./ ") { // as other engines complete it
			ref = "docker.io/library/" + text
		}
		return "no image is stored here; berth image pull " + ref + " or berth image import ARCHIVE NAME stores one"
	}
	more := ""
	if len(names) > mostNamed {
		names, more = names[:mostNamed], " and more (berth image ls)"
	}
	return "stored are oci:" + strings.Join(names, ", oci:") + more
}
