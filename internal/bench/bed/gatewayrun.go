package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"berth/internal/bench/fio"
	"berth/internal/bench/wire"
)

// place is where a process of an arm works.
type place struct {
	run func(ctx context.Context, argv []string) ([]byte, error)
	dir string // its folder, as it sees it
}

// treeRun is a row of processes that work at the same time, each in a folder of its own of one tree, which arms reach by different
// paths.
type treeRun struct {
	treeRow
	bed *treeBed
}

// dataName is the file in each folder; newName is one that trials make and remove.
const (
	dataName = "data"
	newName  = "new"
)

// command is the fio call of one process.
func (r treeRun) command(dir string, run, warm time.Duration) []string {
	if r.op != "" {
		return fio.Metadata(r.op, dir, r.bed.o.metaFiles())
	}
	j := r.job
	name := dataName
	if j.New {
		name = newName
	}
	j.Files, j.Size, j.Run, j.Warm = []string{filepath.Join(dir, name)}, r.bed.o.Size, run, warm
	return j.Args()
}

// Measure runs the processes of an arm. When one fails the others are ended.
func (r treeRun) Measure(ctx context.Context, a Arm, run, warm time.Duration) (_ map[string]float64, err error) {
	places := r.bed.places[a.Name][:r.count]
	sub := ""
	if r.op != "" {
		var remove func() error
		if sub, remove, err = r.bed.files(r.count, r.op != fio.Create); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	ctx, cancel := context.WithTimeout(ctx, run+warm+Lead+2*time.Minute)
	defer cancel()
	at := time.Now().Add(Lead)
	said := make([][]byte, len(places))
	var once sync.Once
	var failed error
	var wg sync.WaitGroup
	for i, p := range places {
		wg.Go(func() {
			argv := append([]string{"/bin/sh", "-c", StartTogether, strconv.FormatInt(at.UnixNano(), 10)}, r.command(filepath.Join(p.dir, sub), run, warm)...)
			var err error
			if said[i], err = p.run(ctx, argv); err != nil {
				once.Do(func() { failed = fmt.Errorf("process %d of %d: %w", i+1, len(places), err); cancel() })
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(at)): // the time to start the processes does not count
	}
	before, err := wire.Busy()
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	after, err := wire.Busy()
	if err != nil {
		return nil, err
	}
	return r.values(said, after-before)
}

// values adds up what the processes measured: rates are summed, latencies are means.
func (r treeRun) values(said [][]byte, busy float64) (map[string]float64, error) {
	sum, moved := map[string]float64{}, 0.
	for _, out := range said {
		if r.op != "" {
			v, err := fio.ReadMetadata(out, r.bed.o.metaFiles())
			if err != nil {
				return nil, err
			}
			sum["ops_per_second"] += v
			continue
		}
		v, err := fio.Read(out)
		if err != nil {
			return nil, err
		}
		n, err := fio.Bytes(out)
		if err != nil {
			return nil, err
		}
		moved += n
		for _, name := range []string{"bytes_per_second", "iops"} {
			sum[name] += v[name]
		}
		sum["lat_p99_us"] += v["lat_p99_us"] / float64(len(said))
	}
	if r.job.Cached {
		return map[string]float64{"bytes_per_second": sum["bytes_per_second"], "cpu_s_per_gib": busy / (moved / (1 << 30))}, nil
	}
	return sum, nil
}

// files makes a folder for this trial in the folder of each process, with files in it if filled, and returns its name. It is made on
// the host's side, under a name that no client has seen: none knows anything of it yet.
func (t *treeBed) files(count int, filled bool) (sub string, remove func() error, err error) {
	t.trial++
	sub = "t" + strconv.Itoa(t.trial)
	var made []string
	remove = func() error {
		var errs []error
		for _, dir := range made {
			errs = append(errs, os.RemoveAll(dir))
		}
		return errors.Join(errs...)
	}
	for i := range count {
		dir := filepath.Join(t.dir, strconv.Itoa(i+1), sub)
		made = append(made, dir)
		if err := openFolder(dir); err != nil {
			return "", nil, errors.Join(err, remove())
		}
		for n := range t.o.metaFiles() {
			if !filled {
				break
			}
			if err := os.WriteFile(filepath.Join(dir, fio.MetaFile(n)), nil, 0o666); err != nil {
				return "", nil, errors.Join(fmt.Errorf("make the files of a trial: %w", err), remove())
			}
		}
	}
	return sub, remove, nil
}

// openFolder makes a folder in which every user may write: the arms are different users of the disk.
func openFolder(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder to measure in: %w", err)
	}
	return os.Chmod(dir, 0o777)
}
