// Command packedshare starts nodes from one packed image and reports what they share: the file's place on the disk, the page
// cache, and the time of a start (make evidence). It exits with 1 when something is there twice or is left behind.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/stat"
	"berth/internal/sys/layout"
)

type figures struct {
	Image   string      `json:"image"`
	Kind    string      `json:"kind"`
	Nodes   int         `json:"nodes"`
	Files   int         `json:"files"`
	Bytes   int64       `json:"bytes_of_files"`       // as the node reads them
	Layers  int64       `json:"bytes_layers_on_disk"` // the same image unpacked
	File    int64       `json:"bytes_file_on_disk"`
	Deltas  int64       `json:"bytes_deltas_on_disk"` // of all nodes together
	Loops   int         `json:"loop_devices"`
	Before  int64       `json:"bytes_cached_before"`       // of the image's files, before any node read them
	Cached1 int64       `json:"bytes_cached_one_read"`     // seen by the first node, which has read all of them
	CachedN int64       `json:"bytes_cached_seen_by_last"` // seen by the last node, which has read none of them
	Backing int64       `json:"bytes_cached_of_file"`      // of the packed file itself: a second copy, if there were one
	More    int64       `json:"bytes_more_when_all_read"`  // how much the host's page cache grew when all other nodes had read them too
	Second  float64     `json:"start_second_ms"`           // median
	Last    float64     `json:"start_last_ms"`             // median
	Ratio   float64     `json:"ratio_last_to_second"`      // median of the rounds' ratios
	Low     float64     `json:"ratio_low"`                 // 95 %
	High    float64     `json:"ratio_high"`
	Rounds  int         `json:"rounds"`
	Starts  [][]float64 `json:"starts_ms"` // by round and node
}

type run struct {
	berth, dir, tar string
	layout          layout.Layout
	figures
}

func main() {
	r := &run{}
	flag.StringVar(&r.berth, "berth", "build/berth", "the berth to measure")
	flag.StringVar(&r.tar, "tar", "", "the image: the tar of a root")
	flag.StringVar(&r.Kind, "kind", "erofs", "erofs or squashfs")
	flag.IntVar(&r.Nodes, "n", 20, "nodes")
	flag.IntVar(&r.Rounds, "rounds", 20, "how often all of them are started")
	dir := flag.String("dir", "/var/tmp", "where all is kept: a disk")
	out := flag.String("json", "", "write the figures to `FILE`")
	flag.Parse()
	err := r.run(*dir)
	r.print()
	if text, jsonErr := json.Marshal(r.figures); jsonErr == nil && *out != "" {
		err = errors.Join(err, os.WriteFile(*out, append(text, '\n'), 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packedshare:", err)
		os.Exit(1)
	}
}

func (r *run) run(dir string) (err error) {
	if r.berth, err = filepath.Abs(r.berth); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp(dir, "berth-packedshare-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if err := os.Chmod(r.dir, 0o711); err != nil { // the mapped ids of nodes need to traverse it
		return err
	}
	r.layout, r.Image = layout.New(filepath.Join(r.dir, "root")), filepath.Base(r.tar)
	file := filepath.Join(r.dir, "image."+r.Kind)
	for _, args := range [][]string{{"image", "import", r.tar, "image"}, {"image", "pack", "image", "-o", file}} {
		if err := r.call(args...); err != nil {
			return err
		}
	}
	if err := forget(file); err != nil {
		return err
	}
	r.Layers, r.File = blocks(r.layout.Layers()), blocks(file)
	for i := range r.Nodes {
		text := fmt.Sprintf("name: %s\nimage: file:%s\ncommand: [/bin/sleep, '100000']\n", name(i), file)
		if err := os.WriteFile(filepath.Join(r.dir, name(i)), []byte(text), 0o600); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, r.removeAll(), r.nothingLeft()) }()
	for round := range r.Rounds {
		if err := r.startAll(); err != nil {
			return err
		}
		if round == 0 {
			if err := r.look(file); err != nil {
				return err
			}
		}
		if err := r.removeAll(); err != nil {
			return err
		}
	}
	r.judge()
	if r.Loops != 1 || r.CachedN < r.Cached1*9/10 { // a busy host takes some back meanwhile
		return fmt.Errorf("the nodes do not share the image: %d loop devices, %d bytes cached for the first and %d for the last", r.Loops, r.Cached1, r.CachedN)
	}
	return nil
}

func name(i int) string { return fmt.Sprintf("n%02d", i+1) }

// startAll starts the nodes one after the other.
func (r *run) startAll() error {
	var took []float64
	for i := range r.Nodes {
		began := time.Now()
		if err := r.call("apply", "-f", filepath.Join(r.dir, name(i))); err != nil {
			return err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	r.Starts = append(r.Starts, took)
	return nil
}

func (r *run) removeAll() error {
	entries, err := os.ReadDir(r.layout.LibNodes())
	if err != nil || len(entries) == 0 {
		return nil //nolint:nilerr // no node was made
	}
	args := []string{"rm", "--force"}
	for _, e := range entries {
		args = append(args, e.Name())
	}
	return r.call(args...)
}

// look measures what is on the disk and in the page cache while all nodes run.
func (r *run) look(file string) error {
	first, last := r.root(0), r.root(r.Nodes-1)
	var err error
	if _, r.Before, err = r.cached(first); err != nil {
		return err
	}
	if err := read(first); err != nil {
		return err
	}
	if r.Bytes, r.Cached1, err = r.cached(first); err != nil {
		return err
	}
	if _, r.CachedN, err = r.cached(last); err != nil {
		return err
	}
	was := meminfo("Cached:") + meminfo("Buffers:")
	for i := range r.Nodes {
		if err := read(r.root(i)); err != nil {
			return err
		}
	}
	r.More = meminfo("Cached:") + meminfo("Buffers:") - was
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r.Backing, err = pages(f)
	backs, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backs {
		if text, readErr := os.ReadFile(b); readErr == nil && strings.TrimSpace(string(text)) == file {
			r.Loops++
		}
	}
	r.Deltas = blocks(r.layout.LibNodes())
	return err
}

// root returns the root of a running node, as its process 1 sees it.
func (r *run) root(i int) string {
	out, err := exec.Command(r.berth, "--root", filepath.Join(r.dir, "root"), "show", "--json", name(i)).Output()
	var s struct{ PID int }
	if err != nil || json.Unmarshal(out, &s) != nil {
		return "/nonexistent"
	}
	return "/proc/" + strconv.Itoa(s.PID) + "/root/"
}

// each calls f with every regular file of the image that a node has.
func each(root string, f func(*os.File, int64) error) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (path == root+"proc" || path == root+"sys" || path == root+"dev") {
			return fs.SkipDir
		}
		in, _ := filepath.Rel(root, path)
		if !e.Type().IsRegular() || in == "etc/hosts" || in == "etc/hostname" || in == "etc/resolv.conf" { // the node's own
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		return f(file, info.Size())
	})
}

func read(root string) error {
	buf := make([]byte, 1<<20)
	return each(root, func(f *os.File, _ int64) error {
		for {
			if n, err := f.Read(buf); n == 0 || err != nil {
				return nil //nolint:nilerr // the end
			}
		}
	})
}

// cached returns the bytes of the image's files, and how many of them are in the page cache.
func (r *run) cached(root string) (bytes, cached int64, err error) {
	r.Files = 0
	err = each(root, func(f *os.File, size int64) error {
		r.Files++
		n, err := pages(f)
		bytes, cached = bytes+size, cached+n
		return err
	})
	return bytes, cached, err
}

// pages returns how many bytes of a file are in the page cache (mincore(2)).
func pages(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	defer func() { _ = unix.Munmap(m) }()
	return resident(m)
}

// forget drops a file from the page cache, where writing it has put it.
func forget(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// blocks returns the bytes that a file or a tree takes on the disk.
func blocks(path string) (n int64) {
	_ = filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			n += st.Blocks * 512
		}
		return nil
	})
	return n
}

func meminfo(key string) int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// judge compares the last start with the second of the same round.
func (r *run) judge() {
	var second, last, logs []float64
	for _, round := range r.Starts {
		a, b := round[1], round[len(round)-1]
		second, last, logs = append(second, a), append(last, b), append(logs, math.Log(b/a))
	}
	r.Second, r.Last = stat.MedianOf(second), stat.MedianOf(last)
	center, ci := stat.Paired(logs, 0.05)
	r.Ratio = math.Exp(center)
	if ci != nil {
		r.Low, r.High = math.Exp(ci.Lo), math.Exp(ci.Hi)
	}
}

// nothingLeft waits until the keeper has ended, and looks for what nodes could leave.
func (r *run) nothingLeft() error {
	for range 100 {
		backs, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		left := 0
		for _, b := range backs {
			if text, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(text), r.dir) {
				left++
			}
		}
		nodes, _ := os.ReadDir(r.layout.LibNodes())
		if left == 0 && len(nodes) == 0 {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("a delta or a loop device is left")
}

func (r *run) call(args ...string) error {
	out, err := exec.Command(r.berth, append([]string{"--root", filepath.Join(r.dir, "root")}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (r *run) print() {
	mib := func(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
	fmt.Printf("%d nodes from one %s of %s\n", r.Nodes, r.Kind, r.Image)
	for _, l := range [][2]string{
		{"files of the image", fmt.Sprintf("%d, %s", r.Files, mib(r.Bytes))},
		{"on disk, as layers", mib(r.Layers)},
		{"on disk, packed", mib(r.File)},
		{"on disk, deltas of all nodes", mib(r.Deltas)},
		{"loop devices", strconv.Itoa(r.Loops)},
		{"in the page cache before", mib(r.Before)},
		{"when the first node has read all", mib(r.Cached1)},
		{"as the last node sees it, which has read nothing", mib(r.CachedN)},
		{"of the packed file itself", mib(r.Backing)},
		{"more on the whole host, when all nodes have read all", mib(r.More)},
		{"second start, median", fmt.Sprintf("%.1f ms", r.Second)},
		{fmt.Sprintf("start %d, median", r.Nodes), fmt.Sprintf("%.1f ms", r.Last)},
		{"their ratio", fmt.Sprintf("%.2f (%.2f to %.2f, 95 %%, %d rounds)", r.Ratio, r.Low, r.High, r.Rounds)},
	} {
		fmt.Printf("  %-56s %s\n", l[0], l[1])
	}
}
