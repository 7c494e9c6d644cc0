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

	"berth/internal/file"
	"berth/internal/layout"
	"berth/internal/lock"
)

// SiteID returns what derived MACs of this site depend on, and makes it if there is none. A site that wants the same MACs on
// all its hosts copies the file.
func SiteID(l layout.Layout) (string, error) {
	path := l.SiteID()
	id, err := os.ReadFile(path)
	if err == nil && len(id) > 0 {
		return strings.TrimSpace(string(id)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read site id: %w", err)
	}
	dir, err := lock.OpenDir(context.Background(), l.Lib)
	if err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	defer dir.Close() // and with it the lock
	if id, err := os.ReadFile(path); err == nil && len(id) > 0 {
		return strings.TrimSpace(string(id)), nil
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails: crypto/rand
	text := hex.EncodeToString(random)
	if err := file.Write(path, []byte(text+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	return text, nil
}
