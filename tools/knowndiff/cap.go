package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
)

// caps makes cgroups with capped read and write rates.
type caps struct {
	dir, mechanism string
	v2             bool
	enabled        string // the file in which the controller was enabled here; "" if it was enabled before
	made           []string
}

func newCaps() (*caps, error) {
	c, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	switch {
	case c.V1["blkio"] != "":
		return &caps{dir: c.V1["blkio"], mechanism: "blkio.throttle"}, nil
	case slices.Contains(c.V2Controllers, "io"):
		k := &caps{dir: c.V2, mechanism: "io.max", v2: true}
		if !slices.Contains(c.V2Enabled, "io") {
			k.enabled = filepath.Join(c.V2, "cgroup.subtree_control")
			return k, set(k.enabled, "+io")
		}
		return k, nil
	}
	return nil, errors.New("this host has no cgroup controller for disks (blkio or io)")
}

// group makes a cgroup that may read and write bps bytes per second each on the device, and returns its cgroup.procs.
func (c *caps) group(role, device string, bps int64) (procs string, err error) {
	dir := filepath.Join(c.dir, fmt.Sprintf("knowndiff-%d-%s", os.Getpid(), role))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	c.made = append(c.made, dir)
	if c.v2 {
		err = set(filepath.Join(dir, "io.max"), fmt.Sprintf("%s rbps=%d wbps=%d", device, bps, bps))
	} else {
		for _, verb := range []string{"read", "write"} {
			err = errors.Join(err, set(filepath.Join(dir, "blkio.throttle."+verb+"_bps_device"), fmt.Sprintf("%s %d", device, bps)))
		}
	}
	return filepath.Join(dir, "cgroup.procs"), err
}

// close removes the cgroups and disables the controller again if newCaps enabled it.
func (c *caps) close() error {
	var err error
	for _, dir := range slices.Backward(c.made) {
		err = errors.Join(err, os.Remove(dir))
	}
	if c.enabled != "" {
		err = errors.Join(err, set(c.enabled, "-io"))
	}
	return err
}

func set(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %q: %w", strings.TrimSpace(text), err)
	}
	return nil
}
