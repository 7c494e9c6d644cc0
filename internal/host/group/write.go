package group

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Write is one value in one control file.
type Write struct {
	File   string `json:"file"`             // absolute
	Device string `json:"device,omitempty"` // "254:0", in files with a line for each device
	Param  string `json:"param,omitempty"`  // "rbps", in a line with several values
	Value  string `json:"value"`
	None   string `json:"none"`           // the value that means: no limit
	Unit   int64  `json:"unit,omitempty"` // the kernel rounds a number of bytes down to a multiple of it
	From   string `json:"from,omitempty"` // the file from which the effect is read back, if it is another one
	Sum    bool   `json:"sum,omitempty"`  // the parent needs the sum over its groups
}

// AsParent as a value means the parent group's value. The v1 cpuset has no value for "no limit of its own".
const AsParent = "parent's"

// String is the write as a plan prints it: "memory.limit_in_bytes=4294967296".
func (w Write) String() string {
	return filepath.Base(w.File) + "=" + strings.TrimSpace(w.line(w.Value))
}

// line returns the text that is written for a value.
func (w Write) line(value string) string {
	if w.Param != "" {
		value = w.Param + "=" + value
	}
	if w.Device != "" {
		value = w.Device + " " + value
	}
	if value == "" {
		return "\n" // an empty write would not reach the kernel
	}
	return value
}

// Do writes the value.
func (w Write) Do() error {
	value := w.Value
	if value == AsParent {
		var err error
		parent := filepath.Dir(filepath.Dir(w.File))
		if value, err = ReadFile(filepath.Join(parent, filepath.Base(w.File))); err != nil {
			return err
		}
	}
	err := WriteFile(w.File, w.line(value))
	if errors.Is(err, unix.EINVAL) && w.Idle() {
		if err = w.SetIdle(false); err == nil {
			err = WriteFile(w.File, w.line(value))
		}
	}
	if err := lacking(w.File, err); err != nil || !w.Sum {
		return err
	}
	return sumIn(filepath.Dir(filepath.Dir(w.File)), filepath.Base(w.File))
}

// Idle reports whether this is the weight of CPU time of a group that is idle (cpu.idle), and so has none. The kernel takes none for it
// until it is idle no more (kernel/sched/core.c: sched_group_set_shares).
func (w Write) Idle() bool {
	name := filepath.Base(w.File)
	if name != "cpu.weight" && name != "cpu.shares" {
		return false
	}
	now, err := ReadFile(w.idle())
	return err == nil && now == "1"
}

// SetIdle makes the group of a weight of CPU time idle, or not.
func (w Write) SetIdle(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return WriteFile(w.idle(), value)
}

func (w Write) idle() string { return filepath.Join(filepath.Dir(w.File), "cpu.idle") }

// Short returns the value of the group above if that is less than the sum of its children's, which it needs: the kernel then protects
// less than the value says. "" if there is enough.
func (w Write) Short() (has string, err error) {
	if !w.Sum {
		return "", nil
	}
	return short(filepath.Dir(filepath.Dir(w.File)), filepath.Base(w.File))
}

// Read returns the kernel's current value, in a form that can be written back.
func (w Write) Read(file string) (string, error) {
	text, err := ReadFile(file)
	if err != nil || w.Device == "" {
		return text, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != w.Device {
			continue
		}
		if w.Param == "" {
			return f[1], nil
		}
		for _, pair := range f[1:] {
			if value, ok := strings.CutPrefix(pair, w.Param+"="); ok {
				return value, nil
			}
		}
	}
	return w.None, nil // the kernel omits lines and values that limit nothing
}

// Effect returns the value in force.
func (w Write) Effect() (string, error) {
	if w.From != "" {
		return w.Read(w.From)
	}
	return w.Read(w.File)
}

// Holds reports whether got equals the value, apart from the kernel's rounding.
func (w Write) Holds(got string) bool {
	switch w.Value {
	case "":
		return true // on v2: any value of the parent will do
	case AsParent:
		parent, err := ReadFile(filepath.Join(filepath.Dir(filepath.Dir(w.File)), filepath.Base(w.File)))
		return err != nil || got == parent
	}
	return w.Round(got) == w.Round(w.Value)
}

// Round returns the value as the kernel keeps it (mm/page_counter.c: page_counter_memparse divides by the page size).
func (w Write) Round(value string) string {
	if w.Unit == 0 {
		return value
	}
	if value == w.None || value == "max" {
		return "max"
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return value
	}
	if n < 0 || n >= math.MaxInt64/w.Unit*w.Unit { // PAGE_COUNTER_MAX: v1 prints it for "no limit"
		return "max"
	}
	return strconv.FormatInt(n/w.Unit*w.Unit, 10)
}

// Cleared returns the write that removes the limit.
func (w Write) Cleared() Write {
	w.Value = w.None
	return w
}

// WriteFile writes text to a control file with one write call, as the kernel requires. The error shows the file, the
// text and the kernel's answer.
func WriteFile(file, text string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		_ = unix.Close(fd) // the write reports all errors
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", strings.TrimSpace(text), file, err)
	}
	return nil
}
