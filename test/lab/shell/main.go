// Command shell gives a person a machine of the lab: berth in it, an SR-IOV adapter, a virtio and an NVMe disk.
//
//	go run ./test/lab/shell              a shell on its serial console; Ctrl-] ends the machine
//	go run ./test/lab/shell SCRIPT…      run scripts of bash in it, end it
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/test/built"
	"berth/test/lab"
)

func main() {
	var o lab.Options
	var m lab.Machine
	flag.IntVar(&m.CPUs, "cpus", 2, "virtual CPUs")
	flag.IntVar(&m.Memory, "memory", 1536, "memory in MiB")
	flag.StringVar(&m.Kernel, "kernel", "", "words for the kernel's command line")
	flag.Parse()
	m.NICs = []lab.NIC{{}}
	m.Disks = []lab.Disk{{Size: 2 << 30}, {Size: 2 << 30, NVMe: true}, {Root: true}}
	o.Machines, o.Console = []lab.Machine{m}, flag.NArg() == 0
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o lab.Options, scripts []string) error {
	fmt.Fprintln(os.Stderr, "lab: a virtual machine boots; emulated, that takes about 15 s")
	l, err := lab.Boot(ctx, o)
	if err != nil {
		return err
	}
	defer l.Close()
	dir, err := os.MkdirTemp("", "berth-lab-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	berth := filepath.Join(dir, "berth")
	if err := built.Berth(ctx, berth); err != nil {
		return err
	}
	vm := l.VM(0)
	if err := vm.CopyFile(ctx, berth, "/usr/local/bin/berth"); err != nil {
		return err
	}
	for _, script := range scripts {
		r, err := vm.Script(ctx, script)
		fmt.Print(r.Out)
		fmt.Fprint(os.Stderr, r.Err)
		if err != nil || r.Code != 0 {
			return errors.Join(err, fmt.Errorf("exit code %d", r.Code))
		}
	}
	if len(scripts) > 0 {
		return nil
	}
	return console(ctx, vm)
}

// leave is Ctrl-].
const leave = "\x1d"

// console joins this terminal and the machine's serial console.
func console(ctx context.Context, vm *lab.VM) error {
	c, err := net.Dial("unix", vm.ConsoleSocket())
	if err != nil {
		return err
	}
	defer c.Close()
	if size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err == nil {
		set := fmt.Sprintf("stty -F /dev/ttyS0 rows %d cols %d", size.Row, size.Col)
		if _, err := vm.Script(ctx, set); err != nil {
			return err
		}
	}
	fmt.Fprint(os.Stderr, "lab: berth is in the path, the disks are /dev/vdb and /dev/nvme0n1; /dev/vdc holds a root for nodes. Ctrl-] ends the machine.\r\n")
	if old, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
		raw := *old
		raw.Iflag &^= unix.ICRNL | unix.IXON | unix.ISTRIP | unix.INLCR
		raw.Oflag &^= unix.OPOST
		raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
		if err := unix.IoctlSetTermios(0, unix.TCSETS, &raw); err != nil {
			return err
		}
		defer unix.IoctlSetTermios(0, unix.TCSETS, old) //nolint:errcheck // the terminal may be gone
	}
	ended := make(chan error, 2)
	go func() { _, err := io.Copy(os.Stdout, c); ended <- err }()
	go func() { ended <- typed(c, os.Stdin) }()
	if _, err := io.WriteString(c, "\n"); err != nil { // a prompt
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		fmt.Fprint(os.Stderr, "\r\n")
		return err
	}
}

// typed copies what is typed, until the key that leaves.
func typed(to io.Writer, from io.Reader) error {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		text, _, left := strings.Cut(string(b[:n]), leave)
		if _, err := io.WriteString(to, text); err != nil {
			return err
		}
		if left || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
