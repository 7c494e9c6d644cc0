package machine

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
)

// writeInitrd writes the initial RAM disk of a kernel: the guest's program, and the modules that it needs, with those for the file
// systems of its disks.
func (k *kernel) writeInitrd(w io.Writer, program string, filesystems []string) error {
	out := bufio.NewWriter(w)
	c := &archive{to: out}
	text, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the guests' program: %w", err)
	}
	for _, dir := range []string{"dev", "proc", "sys", "berth", "modules"} {
		c.add(dir, 0o040755, nil)
	}
	c.add("init", 0o100755, text)
	if err := k.addModules(c, append(guestModules(), filesystems...)); err != nil {
		return err
	}
	c.add("TRAILER!!!", 0, nil)
	if c.err != nil {
		return c.err
	}
	return out.Flush()
}

// archive writes an archive of cpio's format newc (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).
type archive struct {
	to  io.Writer
	n   int
	err error
}

func (c *archive) add(name string, mode uint32, data []byte) {
	c.n++
	c.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.n, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0), []byte(name+"\x00"))
	c.write(data)
}

// write writes parts and fills up to a multiple of 4 bytes.
func (c *archive) write(parts ...[]byte) {
	all := slices.Concat(parts...)
	for len(all)%4 != 0 {
		all = append(all, 0)
	}
	if c.err == nil {
		_, c.err = c.to.Write(all)
	}
}
