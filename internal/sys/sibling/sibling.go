// Package sibling finds Berth's other programs (berth-pull, berth-site, berth-sync …), which make install puts beside berth,
// because to have them in berth would slow each of its starts.
package sibling

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/internal/sys/refuse"
)

// Find returns the path of a program: beside this one, else in PATH. If it is in neither, the error says what the program does,
// and the remedy.
func Find(program, does, remedy string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), program)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", refuse.Cannotf(remedy, "%s by the program %s, and there is none beside %s or in PATH", does, program, self)
	}
	return path, nil
}
