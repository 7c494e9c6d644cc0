package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host/systemd"
	"berth/internal/sys/step"
)

// memoryLow is the property that a unit has no more of than the slices above it have.
const memoryLow = "MemoryLow"

// settleSlices adds the MemoryLow of protected units to the slices above them, beside the slices' own values: without
// that, a unit's MemoryLow would have no effect. All these changes are in one journal. It is made anew from the other
// journals whenever it does not fit them, so the next command also repairs what a kill left. The caller holds the lock.
func (v *Services) settleSlices(ctx context.Context) error {
	want, err := v.wantedOfSlices(ctx)
	if err != nil {
		return err
	}
	path := v.layout.Protected() + ".slices"
	j, err := v.slicesJournal(path)
	switch {
	case err == nil && j.Phase == step.Up && maps.Equal(given(j), want):
		return nil
	case err == nil:
		if err := j.Close(ctx); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if len(want) == 0 {
		return nil
	}
	boot, err := step.BootID()
	if err != nil {
		return err
	}
	if j, err = create(path, "slices", boot); err != nil {
		return err
	}
	for _, slice := range slices.Sorted(maps.Keys(want)) {
		if err := raiseSlice(ctx, j, slice, want[slice]); err != nil {
			return fmt.Errorf("protect memory in %s: %w", slice, errors.Join(err, j.Close(context.WithoutCancel(ctx))))
		}
	}
	return j.SetPhase(step.Up)
}

// slicesJournal reads the journal of slices; like journalOf it is refused if a slice has something that it may have named.
func (v *Services) slicesJournal(path string) (*step.Journal, error) {
	j, err := v.open(path)
	if err != nil {
		return nil, err
	}
	wrong, err := cut(j)
	if err != nil || wrong == "" {
		return j, err
	}
	dropIns, err := filepath.Glob(systemd.DropIn(v.control, "*.slice", memoryLow))
	if err != nil {
		return nil, err
	}
	var units []string
	for _, file := range dropIns {
		units = append(units, strings.TrimSuffix(filepath.Base(filepath.Dir(file)), ".d"))
	}
	if left, remedy := v.leftOfUnits(j, "rm "+path, units, memoryLow); left != "" {
		return nil, lost(path, "slices", wrong, left, remedy)
	}
	return j, nil
}

func raiseSlice(ctx context.Context, j *step.Journal, slice string, low uint64) error {
	u, err := systemd.Look(ctx, slice, memoryLow)
	if err != nil {
		return err
	}
	value := "infinity"
	if was, err := strconv.ParseUint(u.Properties[memoryLow], 10, 63); err == nil {
		value = strconv.FormatUint(was+low, 10)
	}
	return j.Do(ctx, &systemd.Set{Unit: slice, Properties: []systemd.Property{{Name: memoryLow, Value: value}}})
}

// wantedOfSlices adds up the MemoryLow of protected units, by the slices above them.
func (v *Services) wantedOfSlices(ctx context.Context) (map[string]uint64, error) {
	targets, err := v.journals()
	if err != nil {
		return nil, err
	}
	want := map[string]uint64{}
	for _, t := range targets {
		if t.kind != kindUnit {
			continue
		}
		j, lost := v.journalOf(t)
		if errors.Is(lost, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		u, err := systemd.Look(ctx, t.name, memoryLow)
		if err != nil {
			continue // a unit that is gone protects nothing
		}
		low := uint64(0)
		if lost == nil {
			low = given(j)[t.name]
		} else if _, err := os.Lstat(systemd.DropIn(v.control, t.name, memoryLow)); err == nil { // the command that settles it says so; its values stay
			low, _ = strconv.ParseUint(u.Properties[memoryLow], 10, 63)
		}
		if low == 0 {
			continue
		}
		for slice := u.Slice; slice != "" && slice != "-.slice"; slice = above(slice) {
			want[slice] += low
		}
	}
	return want, nil
}

// given returns how much the steps of a journal add to the MemoryLow of units.
func given(j *step.Journal) map[string]uint64 {
	all := map[string]uint64{}
	for _, s := range j.Steps() {
		set, ok := s.(*systemd.Set)
		if !ok {
			continue
		}
		for _, p := range set.Properties {
			now, err := strconv.ParseUint(p.Value, 10, 63)
			if p.Name != memoryLow || err != nil {
				continue
			}
			if strings.HasSuffix(set.Unit, ".slice") { // added to its own value
				was, _ := strconv.ParseUint(p.Was, 10, 63) // none: 0
				now -= min(now, was)
			}
			all[set.Unit] += now
		}
	}
	return all
}

// above is the slice around a slice: a.slice of a-b.slice (systemd.slice(5)).
func above(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return ""
	}
	return name[:i] + ".slice"
}
