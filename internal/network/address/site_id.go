package address

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// SiteID returns what derived MACs of this site depend on, and makes it if there is none. A site that wants the same MACs on
// all its hosts copies the file.
func SiteID(l layout.Layout) (string, error) {
	path := l.SiteID()
	if id, err := readSiteID(path); !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	dir, err := lock.OpenDir(context.Background(), l.Lib)
	if err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	defer dir.Close() // and with it the lock
	if id, err := readSiteID(path); !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails: crypto/rand
	text := hex.EncodeToString(random)
	if err := file.Write(path, []byte(text+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	return text, nil
}

// ErrNoSiteID is in the error of an empty file. It is not filled without a word: the MACs that are derived from it would change.
var ErrNoSiteID = errors.New("no site id")

func readSiteID(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read site id: %w", err)
	}
	id := strings.Trim(string(text), " \t\r\n\x00")
	if id == "" {
		return "", &refuse.Error{
			Kind: refuse.Failed, Err: ErrNoSiteID, What: path + " (the id from which MACs are derived) is empty, as after a power failure",
			Remedy: "put it back from a backup, or from another host that has the same; if there is none, remove it: nodes that are made from then on get other MACs",
		}
	}
	return id, nil
}

// RestoreSiteID fills an empty file with the id that the journal of a node has.
func RestoreSiteID(l layout.Layout, id string) error {
	return file.Write(l.SiteID(), []byte(id+"\n"), 0o600)
}
