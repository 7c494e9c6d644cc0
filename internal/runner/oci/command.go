package oci

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/inroot"
)

// checkCommand checks whether the kernel would run args[0] inside the root of process pid, as execve(2) does: the file
// exists, is executable, and has the host's format and processor; its interpreter or loader exists; it asks for no
// capability beyond those of the node; the working folder exists. The error is a *runner.CommandError, or another one if the root
// cannot be read.
func checkCommand(pid int, args, env []string, cwd string, of func() (rights, error)) error {
	root, err := unix.Open(procPath(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the node's root: %w", err)
	}
	defer unix.Close(root)
	if err := checkCwd(root, args[0], cmp.Or(cwd, "/")); err != nil {
		return err
	}
	open := func(file string) (*os.File, error) { return openIn(root, file) }
	mayRun := func(f *os.File, what string) error { return checkFileCaps(f, what, of) }
	return lookUp(open, mayRun, args[0], env, cwd)
}

// checkCwd checks whether the working folder exists: the node's root user may have removed it.
func checkCwd(root int, command, cwd string) error {
	fd, err := inroot.Open(root, cwd, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return &runner.CommandError{Code: runner.ExitCannotRun, Command: command, Why: "its working folder " + cwd + " is not in the node"}
	}
	return fmt.Errorf("look at the working folder %s in the node: %w", cwd, err)
}

// opener opens a node's file for reading, by its path inside. It fails if that is no regular file or not executable.
type opener func(file string) (*os.File, error)

// runnable returns an error if the kernel would refuse a valid program for reasons outside its content; nil if it would
// run it.
type runnable func(program *os.File, what string) error

// lookUp finds a command among a node's files, as execvp(3) does, and checks it.
func lookUp(open opener, mayRun runnable, name string, env []string, cwd string) error {
	cwd = cmp.Or(cwd, "/")
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(cwd, name)
		}
		return checkFile(open, mayRun, name, name, 0)
	}
	search := defaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	found := error(&runner.CommandError{Code: runner.ExitNotFound, Command: name, Why: "not found in PATH=" + search})
	for dir := range strings.SplitSeq(search, ":") {
		if !path.IsAbs(dir) {
			dir = path.Join(cwd, dir)
		}
		err := checkFile(open, mayRun, path.Join(dir, name), path.Join(dir, name), 0)
		var ce *runner.CommandError
		if errors.As(err, &ce) && ce.Code == runner.ExitNotFound && ce.Command == path.Join(dir, name) {
			continue
		}
		return err
	}
	return found
}

// maxInterpreters is how many scripts may interpret each other (the kernel's BINPRM limit is 5 in all).
const maxInterpreters = 4

// checkFile checks one executable file. what is the command to name in errors; it differs from file if file is the
// interpreter of the command.
func checkFile(open opener, mayRun runnable, what, file string, depth int) error {
	fail := func(code int, format string, a ...any) error {
		return &runner.CommandError{Code: code, Command: what, Why: fmt.Sprintf(format, a...)}
	}
	f, err := open(file)
	switch {
	case errors.Is(err, errNotRegular):
		return fail(runner.ExitCannotRun, "%s is not a file", file)
	case errors.Is(err, errNotExecutable):
		return fail(runner.ExitCannotRun, "%s is not executable", file)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		if depth > 0 {
			return fail(runner.ExitNotFound, "its interpreter %s is not in the node", file)
		}
		return fail(runner.ExitNotFound, "no such file in the node")
	case err != nil:
		return fmt.Errorf("look at %s in the node: %w", file, err)
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("look at %s in the node: %w", file, err)
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		line, _, _ := bytes.Cut(head[2:], []byte("\n"))
		words := strings.Fields(string(line))
		if len(words) == 0 || depth == maxInterpreters {
			return fail(runner.ExitCannotRun, "exec format error: no usable interpreter in its first line")
		}
		return checkFile(open, mayRun, what, words[0], depth+1)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		if err := checkELF(open, what, f); err != nil || mayRun == nil {
			return err
		}
		return mayRun(f, what)
	case otherFormats():
		return nil
	}
	return fail(runner.ExitCannotRun, "exec format error: %s is neither a program nor a script", file)
}

// checkELF checks that a program is for this processor and that its loader exists.
func checkELF(open opener, what string, f *os.File) error {
	fail := func(code int, format string, a ...any) error {
		return &runner.CommandError{Code: code, Command: what, Why: fmt.Sprintf(format, a...)}
	}
	prog, err := readELF(f)
	if err != nil {
		return fail(runner.ExitCannotRun, "exec format error: damaged program: %v", err)
	}
	if want, known := machines()[runtime.GOARCH]; known && (prog.machine != want || prog.class != elf.ELFCLASS64) {
		if otherFormats() {
			return nil
		}
		return fail(runner.ExitCannotRun, "exec format error: a program for %s (%s), nodes on this host run %s (%s)",
			prog.machine, prog.class, want, elf.ELFCLASS64)
	}
	if prog.loader == "" {
		return nil
	}
	l, err := open(prog.loader)
	if err != nil {
		return fail(runner.ExitNotFound, "its loader %s is not in the node", prog.loader)
	}
	l.Close()
	return nil
}

// machines maps Go's processor names to ELF's.
func machines() map[string]elf.Machine {
	return map[string]elf.Machine{
		"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64,
		"riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
	}
}

// program holds the headers of an ELF file that the kernel reads first.
type program struct {
	class   elf.Class
	machine elf.Machine
	loader  string // "" for a static program
}

// readELF reads the headers of an ELF file from an image, which is not trusted. It does not use debug/elf, which is not
// hardened against malicious files. It ignores the loader of a 32-bit program, because nodes do not run those.
func readELF(f io.ReaderAt) (program, error) {
	var ident [elf.EI_NIDENT]byte
	if _, err := f.ReadAt(ident[:], 0); err != nil {
		return program{}, errors.New("it is cut off")
	}
	prog := program{class: elf.Class(ident[elf.EI_CLASS])}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(ident[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	var head elf.Header64
	if err := binary.Read(io.NewSectionReader(f, 0, 64), order, &head); err != nil {
		return program{}, errors.New("it is cut off")
	}
	prog.machine = elf.Machine(head.Machine)
	if prog.class != elf.ELFCLASS64 {
		return prog, nil
	}
	for i := range int64(head.Phnum) {
		var p elf.Prog64
		at := io.NewSectionReader(f, int64(head.Phoff)+i*int64(head.Phentsize), 56)
		if err := binary.Read(at, order, &p); err != nil {
			return program{}, errors.New("it is cut off")
		}
		if elf.ProgType(p.Type) != elf.PT_INTERP {
			continue
		}
		if p.Filesz < 2 || p.Filesz > unix.PathMax { // as in the kernel's load_elf_binary
			return program{}, errors.New("the name of its loader is too long or empty")
		}
		name := make([]byte, p.Filesz)
		if _, err := f.ReadAt(name, int64(p.Off)); err != nil {
			return program{}, errors.New("it is cut off")
		}
		name, _, _ = bytes.Cut(name, []byte{0})
		prog.loader = string(name)
		return prog, nil
	}
	return prog, nil
}

var (
	errNotRegular    = errors.New("not a regular file")
	errNotExecutable = errors.New("not executable")
)

// openIn opens an executable file below root for reading. It follows links as the node would, never out of the root.
func openIn(root int, file string) (*os.File, error) {
	fd, err := inroot.Open(root, file, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotRegular
	}
	if st.Mode&0o111 == 0 {
		return nil, errNotExecutable
	}
	// Opened only now: to open a pipe would block.
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// otherFormats reports whether the host runs programs of other formats (binfmt_misc: qemu, java …).
func otherFormats() bool {
	entries, err := os.ReadDir("/proc/sys/fs/binfmt_misc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name() != "register" && e.Name() != "status" {
			return true
		}
	}
	return false
}

// checkFileCaps returns a *runner.CommandError if the kernel would refuse a program because its file asks for a capability that
// the node does not have (EPERM of bprm_caps_from_vfs_caps). The runtimes notice too late to report it well.
//
// The file must be opened through the node's own mount: on a mount with nosuid, file capabilities have no effect.
func checkFileCaps(f *os.File, what string, of func() (rights, error)) error {
	raw := make([]byte, 64)
	n, _ := unix.Fgetxattr(int(f.Fd()), "security.capability", raw) // an error means no attribute, as for nearly every file
	asks, root, needs := fileCaps(raw[:max(n, 0)])
	var fs unix.Statfs_t
	if !needs || unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Flags&unix.ST_NOSUID != 0 {
		return nil //nolint:nilerr // no attribute is no error
	}
	has, err := of()
	if err != nil {
		return err
	}
	if root != 0 && root != has.root { // of another user namespace: without effect
		return nil
	}
	var lacks []string
	for i, name := range capabilityNumbers() {
		if asks&(1<<i) != 0 && !slices.Contains(has.bounding, name) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return &runner.CommandError{Code: runner.ExitCannotRun, Command: what, Why: fmt.Sprintf("operation not permitted: its file asks for %s, which the node does not have",
		strings.Join(lacks, ", "))}
}

// fileCaps decodes the attribute security.capability (uapi linux/capability.h, struct vfs_ns_cap_data). It returns the
// permitted capabilities, the host's id of the root user in whose user namespaces they apply (0: version 2, no root), and
// whether the program needs all of them (the effective bit). Read through an idmapped mount, every attribute has a root.
func fileCaps(raw []byte) (permitted uint64, root uint32, needs bool) {
	const effective, version2, version3 = 0x000001, 0x02000000, 0x03000000
	if len(raw) < 20 {
		return 0, 0, false
	}
	magic := binary.LittleEndian.Uint32(raw)
	switch version := magic &^ effective; {
	case version == version3 && len(raw) == 24:
		root = binary.LittleEndian.Uint32(raw[20:])
	case version != version2 || len(raw) != 20:
		return 0, 0, false
	}
	permitted = uint64(binary.LittleEndian.Uint32(raw[4:])) | uint64(binary.LittleEndian.Uint32(raw[12:]))<<32
	return permitted, root, magic&effective != 0
}

// capabilityNumbers returns the names of the kernel's capabilities, indexed by number.
func capabilityNumbers() []string {
	const names = `CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
		NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
		SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
		WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`
	all := strings.Fields(names)
	for i := range all {
		all[i] = "CAP_" + all[i]
	}
	return all
}

// rights decide which file capabilities have effect in a node.
type rights struct {
	bounding []string
	root     uint32 // the host's id of the node's root
}
