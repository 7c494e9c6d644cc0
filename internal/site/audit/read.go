package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Wish says which lines are wanted.
type Wish struct {
	Who          string    // "": every caller
	Node         string    // the node or other thing that the act is on, or one of several; "": all
	Since, Until time.Time // zero: no bound
	Reads        bool      // also reads, and acts that were refused before they began
}

func (w Wish) wants(l *Line) bool {
	return (w.Who == "" || l.Who == w.Who) && (w.Node == "" || slices.Contains(strings.Fields(l.On), w.Node)) &&
		!l.Time.Before(w.Since) && (w.Until.IsZero() || !l.Time.After(w.Until))
}

// Tell calls each with every wanted line of the log whose acts are at path. The lines of each file keep their order; acts and reads are
// merged by time. damaged is how many lines cannot be read: those that a kill or a full disk cut off. The error is fs.ErrNotExist where
// there is no log.
func Tell(path string, w Wish, each func(Line) error) (damaged int, err error) {
	acts, err := parts(path)
	if err != nil {
		return 0, err
	}
	defer closeAll(acts)
	var reads []*os.File
	if w.Reads {
		reads, err = parts(Reads(path))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		defer closeAll(reads)
	}
	var failed error
	next, stop := iter.Pull(linesOf(acts, &damaged, &failed))
	defer stop()
	nextRead, stopReads := iter.Pull(linesOf(reads, &damaged, &failed))
	defer stopReads()
	act, isAct := next()
	read, isRead := nextRead()
	for isAct || isRead {
		var one Line
		if isAct && (!isRead || !read.Time.Before(act.Time)) {
			one = act
			act, isAct = next()
		} else {
			one = read
			read, isRead = nextRead()
		}
		if w.wants(&one) {
			if err := each(one); err != nil {
				return damaged, err
			}
		}
	}
	return damaged, failed
}

// parts opens the files of a log, the oldest first. The newest one is opened first: if it is put aside meanwhile, it is not read twice.
func parts(path string) (all []*os.File, err error) {
	newest, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	info, err := newest.Stat()
	names, globErr := filepath.Glob(path + ".*") // in the order of their names, which end with the time
	err = errors.Join(err, globErr)
	for _, name := range names {
		if err != nil {
			break
		}
		f, openErr := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(openErr, fs.ErrNotExist) || errors.Is(openErr, unix.ELOOP) {
			continue // it was too old; a link is no part of the log
		}
		if openErr != nil {
			err = fmt.Errorf("read the audit: %w", openErr)
			break
		}
		old, statErr := f.Stat()
		if statErr != nil || !old.Mode().IsRegular() || os.SameFile(old, info) {
			f.Close()
			continue
		}
		all = append(all, f)
	}
	all = append(all, newest)
	if err != nil {
		closeAll(all)
		return nil, err
	}
	return all, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// linesOf reads the lines of files, one after the other, and counts those that are none.
func linesOf(files []*os.File, damaged *int, failed *error) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		for _, f := range files {
			r := bufio.NewReaderSize(f, 64<<10)
			for {
				text, err := r.ReadSlice('\n')
				var l Line
				switch {
				case errors.Is(err, io.EOF): // a line that is being written is not read
				case errors.Is(err, bufio.ErrBufferFull):
					*damaged++ // no line is that long
					for errors.Is(err, bufio.ErrBufferFull) {
						_, err = r.ReadSlice('\n')
					}
				case err != nil:
					*failed = errors.Join(*failed, fmt.Errorf("read the audit: %w", err))
				case json.Unmarshal(text, &l) != nil:
					*damaged++
				case !yield(l):
					return
				}
				if err != nil {
					break
				}
			}
		}
	}
}

// inLine escapes what text.NewVisible lets through: what users gave, as the path of a request, ends no line and begins no other.
var inLine = strings.NewReplacer("\n", `\u000a`, "\t", `\u0009`)

// String is a line for people: the time, who, what on what, and what came of it.
func (l Line) String() string {
	words := []string{l.Time.Local().Format("2006-01-02 15:04:05.000"), string(l.Role), l.Who, string(l.Act)}
	if l.On != "" {
		words = append(words, l.On)
	}
	words = append(words, l.Result)
	if l.Dropped > 0 {
		words = append(words, fmt.Sprintf("%d lines", l.Dropped))
	}
	if l.Exit != nil {
		words = append(words, fmt.Sprintf("exit %d", *l.Exit))
	}
	all := []string{strings.Join(words, " ")}
	for _, more := range []string{l.Detail, l.Error} {
		if more != "" {
			all = append(all, more)
		}
	}
	return inLine.Replace(strings.Join(all, ": "))
}
