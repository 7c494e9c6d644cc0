package script

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/env"
	"berth/test/testkit"
)

// tidy removes the nodes and links that a script left, and reports everything that is left of them after that.
func tidy(t *testing.T, work, bin, link string) {
	b := env.Berth{Program: filepath.Join(bin, "real", "berth"), Root: filepath.Join(work, "root")}
	if err := b.Clear(); err != nil {
		t.Errorf("%s: %v", work, err)
	}
	if interfaces, err := net.Interfaces(); err == nil {
		for _, i := range interfaces {
			if strings.HasPrefix(i.Name, link) {
				_ = exec.Command("ip", "link", "delete", i.Name).Run() // it may have been deleted with its peer
			}
		}
	}
	if loops, err := exec.Command("losetup", "--noheadings", "--output", "NAME,BACK-FILE").Output(); err == nil {
		for line := range strings.Lines(string(loops)) {
			if name, file, _ := strings.Cut(line, " "); strings.Contains(file, work+"/") {
				_ = exec.Command("losetup", "--detach", name).Run() // left reports it if this fails
				t.Errorf("%s left: loop device %s", filepath.Base(work), name)
			}
		}
	}
	for _, what := range b.Left() {
		t.Errorf(testkit.FinalMark+"%s left: %s", filepath.Base(work), what)
	}
}
