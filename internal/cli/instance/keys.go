package instance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// mostKeys bounds what is sent along with a job.
const mostKeys = 64

// keys reads files of public keys, by default those of ssh's own names. Each must hold nothing but keys, as ssh-keygen sees them.
func keys(files []string) (all []string, err error) {
	if len(files) == 0 {
		files, _ = filepath.Glob(filepath.Join(home(), ".ssh", "id_*.pub")) // fails only for a wrong pattern
		if len(files) == 0 {
			return nil, refuse.Invalidf("no public key in %s: ssh-keygen makes one, --key FILE names another", filepath.Join(home(), ".ssh"))
		}
	}
	program, err := lookPath("ssh-keygen")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, refuse.Invalidf("--key: %w", err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if strings.Contains(line, "PRIVATE KEY") {
				return nil, refuse.Invalidf("--key %s:%d: a private key: the public one is in a file that ends in .pub", f, n+1)
			}
			check := exec.Command(program, "-l", "-f", "-")
			check.Stdin = strings.NewReader(line + "\n")
			if err := fork.Run(check); err != nil {
				return nil, refuse.Invalidf("--key %s:%d: no public key of ssh", f, n+1)
			}
			all = append(all, line)
		}
	}
	if len(all) == 0 || len(all) > mostKeys {
		return nil, refuse.Invalidf("--key: %d keys: 1 to %d are wanted", len(all), mostKeys)
	}
	return all, nil
}

// lookPath finds a program of OpenSSH.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return "", refuse.Cannotf("install OpenSSH's client", "%s is not on this host", program)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", program, err)
	}
	return path, nil
}
