package block

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/step"
)

// Loans is the folder that records to which engine Berth switched each disk, for which running nodes, and what the disk had
// before. There is one per host, whatever root the nodes are kept under, because a disk has one scheduler.
type Loans string

// Loan is the record of one disk. When the last node in it ends, the disk gets its old settings back.
type Loan struct {
	Boot   string       `json:"boot"` // id of the boot in which it is valid
	Engine vnode.Engine `json:"engine"`
	Model  string       `json:"model,omitempty"` // of iocost, as a spec gives it
	Was    Setup        `json:"was"`
	By     []string     `json:"by"` // live folders of the nodes that asked for it
}

// Setup is the settings of a disk that an engine depends on, as read from the kernel.
type Setup struct {
	Scheduler  string `json:"scheduler,omitempty"`
	LowLatency string `json:"low_latency,omitempty"` // of BFQ
	Strict     string `json:"strict,omitempty"`      // of BFQ
	Requests   string `json:"requests,omitempty"`    // nr_requests; a newly chosen scheduler starts with its own number
	QoS        string `json:"qos,omitempty"`         // the disk's line of io.cost.qos
	Model      string `json:"model,omitempty"`       // the disk's line of io.cost.model
}

// Names are the names of the nodes that hold the loan.
func (l *Loan) Names() string {
	names := make([]string, len(l.By))
	for i, dir := range l.By {
		names[i] = filepath.Base(dir)
	}
	return strings.Join(names, ", ")
}

// Switched reports whether the disk had another engine before.
func (l *Loan) Switched() bool {
	if l.Engine.IsBFQ() {
		return l.Was.Scheduler != string(vnode.BFQ)
	}
	return !strings.Contains(l.Was.QoS, " enable=1")
}

// Of returns the loan of a disk; nil if there is none. Nodes that ended without giving it back are left out. The loan
// itself lasts until another node ends or starts on the disk, or the host reboots.
func (d Loans) Of(q Queue) (*Loan, error) {
	b, err := os.ReadFile(d.file(q))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no loan is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read what %s was switched to: %w", q.Name, err)
	}
	var l Loan
	record := jsonfile.File{
		Path: d.file(q), Is: "which I/O engine disk " + q.Name + " had before",
		Remedy: "stop the nodes that use the disk by weight, set its scheduler in /sys/block, and remove the file",
	}
	if err := record.Decode(b, &l); err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil || l.Boot != boot {
		return nil, err
	}
	l.By = slices.DeleteFunc(l.By, func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	return &l, nil
}

// file returns the path of a disk's loan. No other disk has the same name and sequence number.
func (d Loans) file(q Queue) string {
	return filepath.Join(string(d), strings.ReplaceAll(q.Name, "/", "!")+"."+strconv.FormatUint(q.Seq, 10))
}

// write writes a loan, whole or not at all.
func (d Loans) write(q Queue, l *Loan) error {
	if err := file.WriteJSONForBoot(d.file(q), l); err != nil {
		return fmt.Errorf("note what %s is switched to: %w", q.Name, err)
	}
	return nil
}

func (d Loans) remove(q Queue) error {
	for _, file := range []string{d.file(q) + file.Unwritten, d.file(q)} { // the .tmp file is left if its writer was killed
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget what %s was switched to: %w", q.Name, err)
		}
	}
	return nil
}

// lock keeps other processes from changing loans until the returned file is closed.
func (d Loans) lock() (*os.File, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, fmt.Errorf("lock the disks' engines: %w", err)
	}
	f, err := lock.OpenDir(context.Background(), string(d)) // held for milliseconds: no command gives up
	if err != nil {
		return nil, fmt.Errorf("lock the disks' engines: %w", err)
	}
	return f, nil
}
