package scratch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"berth/internal/sys/fork"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// program finds one of the programs that make volumes. A unit of systemd or a login of sudo may have no sbin in its PATH.
func program(name, pkg string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		return "", refuse.Cannotf(fmt.Sprintf("install %s (Debian, Ubuntu: apt install %s)", pkg, pkg), "this host has no %s, which scratch volumes need", name)
	}
	return path, nil
}

const (
	lvmPackage = "lvm2"
	lvmProgram = "lvm" // lvs, lvcreate … are names of this one
)

// mkfs returns the program that makes a file system, and its package.
func mkfs(fs string) (name, pkg string) {
	if fs == "xfs" {
		return "mkfs.xfs", "xfsprogs"
	}
	return "mkfs.ext4", "e2fsprogs"
}

// said returns the message of a program that failed.
type said struct {
	program, text string
}

func (e *said) Error() string { return e.program + ": " + e.text }

// run runs a program that changes something. held is the locked file of a pool, which the program gets as its standard input:
// the lock lasts until the program has ended, also if this process is killed. LVM closes all other files that it inherits.
// Neither the end of a context nor a key on the terminal interrupts the program.
func run(held *os.File, path string, args ...string) ([]byte, error) {
	return output(exec.Command(path, args...), held)
}

func output(cmd *exec.Cmd, held *os.File) ([]byte, error) {
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LVM_SUPPRESS_FD_WARNINGS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if held != nil {
		cmd.Stdin = held
	}
	out, err := fork.Output(cmd)
	if err == nil {
		return out, nil
	}
	words := strings.Join(strings.Fields(errs.String()), " ")
	if words == "" {
		words = err.Error()
	}
	name := strings.Join(cmd.Args[:1], " ")
	if strings.HasSuffix(name, "/"+lvmProgram) {
		name = cmd.Args[1]
	}
	return nil, &said{program: name[strings.LastIndexByte(name, '/')+1:], text: words}
}

// row is one row of a report of LVM, by the names of its columns.
type row map[string]string

func (r row) int(key string) int64 {
	n, _ := strconv.ParseInt(r[key], 10, 64)
	return n
}

func (r row) float(key string) float64 {
	f, _ := strconv.ParseFloat(r[key], 64)
	return f
}

// report asks LVM: lvs or vgs, its columns, and what to select. Sizes are in bytes.
func report(ctx context.Context, command, columns string, args ...string) ([]row, error) {
	path, err := program(lvmProgram, lvmPackage)
	if err != nil {
		return nil, err
	}
	args = append([]string{command, "--reportformat", "json", "--units", "b", "--nosuffix", "-o", columns}, args...)
	out, err := output(exec.CommandContext(ctx, path, args...), nil)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Report []map[string][]row `json:"report"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %s", command, jsonfile.Wrong(out, err))
	}
	var all []row
	for _, r := range doc.Report {
		all = append(all, r[strings.TrimSuffix(command, "s")]...)
	}
	return all, nil
}
