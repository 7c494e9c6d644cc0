// Package compiled loads BPF programs that a compiler made: the maps of an object at once, each program when it is attached,
// because which ones a kernel takes is found by trying. Package bpf has programs of a few instructions, without a compiler.
package compiled

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"berth/internal/sys/refuse"
)

// Object is an object whose maps are in the kernel until it is closed.
type Object struct {
	Maps map[string]*ebpf.Map

	what, instead string
	spec          *ebpf.CollectionSpec
	programs      map[string]*ebpf.ProgramSpec
}

// Load makes the maps of an object, and fills its map "numbers" with numbers. In errors, what names the purpose of the programs
// ("the gate"), and instead, which may be "", is added to the remedy ("; else use way launch"). If this kernel refuses a part, the
// error is a [refuse.Cannot].
func Load(object []byte, what, instead string, numbers ...ebpf.MapKV) (*Object, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the object of %s: %w", what, err)
	}
	spec.Maps["numbers"].Contents = numbers
	o := &Object{what: what, instead: instead, spec: spec, programs: maps.Clone(spec.Programs)}
	clear(spec.Programs)
	made, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, o.Refused("its maps", err)
	}
	o.Maps = made.Maps
	return o, nil
}

// Attach loads one program, and attaches it to its place. The link keeps it in the kernel.
func (o *Object) Attach(program string) (link.Link, error) {
	o.spec.Programs = map[string]*ebpf.ProgramSpec{program: o.programs[program]}
	one, err := ebpf.NewCollectionWithOptions(o.spec, ebpf.CollectionOptions{MapReplacements: o.Maps})
	if err != nil {
		return nil, err
	}
	defer one.Close() // the link keeps the program
	return link.AttachTracing(link.TracingOptions{Program: one.Programs[program]})
}

// Refused says why the kernel does not take a part of the object: the first line of its verifier's message.
func (o *Object) Refused(part string, err error) error {
	var remedy string
	switch {
	case errors.Is(err, os.ErrPermission) && os.Geteuid() != 0:
		remedy = "run it with sudo"
	case errors.Is(err, os.ErrPermission):
		remedy = "this kernel, or a policy of this host, forbids programs of this kind"
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		remedy = "it takes a kernel with BTF (CONFIG_DEBUG_INFO_BTF, /sys/kernel/btf/vmlinux) of 5.17 or later"
	default:
		remedy = "it was shown on Linux 6.18: file an issue with this line and uname -r"
	}
	why := err.Error()
	if v, ok := errors.AsType[*ebpf.VerifierError](err); ok && len(v.Log) > 0 {
		why = fmt.Sprintf("%v: %s", v.Cause, v.Log[0])
	}
	why, _, _ = strings.Cut(why, "\n")
	why, _, _ = strings.Cut(why, " (MEMLOCK may") // the library's guess: kernels of these versions have no such limit
	return refuse.Cannotf(remedy+o.instead, "this kernel refuses %s: %s: %s", o.what, part, why)
}

// Close closes the maps. Programs that are attached go on with them.
func (o *Object) Close() error {
	var errs []error
	for _, m := range o.Maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
