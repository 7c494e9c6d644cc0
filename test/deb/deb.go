// Package deb makes Berth's Debian packages for tests.
package deb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"berth/test/built"
)

// Files puts what the packages are made of into a folder: programs, man pages, completions. The caller works in a folder of this
// module, two below its root.
func Files(ctx context.Context, dir string) error {
	if err := built.All(ctx, dir); err != nil {
		return err
	}
	if err := command(ctx, nil, "go", "run", "../../tools/gendocs", filepath.Join(dir, "man")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "completion"), 0o755); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := exec.CommandContext(ctx, filepath.Join(dir, "berth"), "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("berth completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "completion", "berth."+shell), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Make packs the files of a folder as packages of a version, and returns these. It compresses them little.
func Make(ctx context.Context, files, out, version string, env ...string) (packages []string, err error) {
	env = append([]string{"DEB_COMPRESSION=gzip -z1", "SOURCE_DATE_EPOCH=1750000000"}, env...)
	if err := command(ctx, env, "../../scripts/deb", files, out, version); err != nil {
		return nil, err
	}
	packages, err = filepath.Glob(filepath.Join(out, "*.deb"))
	slices.Sort(packages)
	return packages, err
}

func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
