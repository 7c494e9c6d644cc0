package iosync

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"berth/internal/site/intercept/instances"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/sys/fault"
	"berth/internal/sys/layout"
)

// ending is the end of an instance, which may take some seconds.
type ending struct {
	done bool
	err  error
}

// free ends the instances of nodes that go, and returns those that have none any more. Their addresses are taken from them before that. An
// end may take seconds, for which other file systems do not wait: Follow is called again after it.
func (w *steered) free(nodes []string) (freed []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		e := w.ending[n]
		if e == nil {
			one, err := w.leave(n)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			e = &ending{}
			w.ending[n] = e
			go func() {
				err := w.end(n, one)
				w.mu.Lock()
				e.done, e.err = true, err
				w.mu.Unlock()
				w.wake()
			}()
		}
		if !e.done {
			continue
		}
		delete(w.ending, n)
		if errs = append(errs, e.err); e.err == nil {
			freed = append(freed, n)
		}
	}
	return freed, errors.Join(errs...)
}

// leave takes a node's addresses from it, and returns its instance, which is to be ended. The caller holds the lock.
func (w *steered) leave(node string) (*running, error) {
	err := w.claim(node, nil)
	if err == nil {
		err = w.pass()
	}
	one := w.all[node]
	if one == nil {
		one = &running{instance: w.before[node], quit: func() {}}
	}
	one.leaving = true
	one.quit()
	return one, err
}

// end ends a node's instance, and waits for that. It is called without the lock.
func (w *steered) end(node string, one *running) error {
	if one.begun != nil {
		<-one.begun
	}
	w.mu.Lock()
	is := one.instance
	w.mu.Unlock()
	if err := end(w.server, w.at, node, is); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, node)
	delete(w.before, node)
	return w.release(node, is.Port)
}

// end ends the instance of a node, waits for that, and removes its folder.
func end(server *instances.Server, at *place.FS, node string, is instance) error {
	if err := server.End(node, procs(at, node), is.PID, grace); err != nil {
		return fmt.Errorf("end the instance of node %s: %w", node, err)
	}
	fault.Point("instance of a node ended on a file server")
	return server.Forget(node)
}

// steeredOf returns the part of an entry of berthd's file on which the instances depend. Other changes of the entry end no
// instance.
func steeredOf(f want.Filesystem) want.Filesystem {
	return want.Filesystem{
		Name: f.Name, Path: f.Path, Server: f.Server, Way: f.Way, Port: f.Port, User: f.User, Command: f.Command, Namespace: f.Namespace,
	}
}

// unsteer ends the steering and the instances of a file system, unless it is served by the same entry of berthd's file: then it goes on.
func unsteer(l layout.Layout, filesystem string, now *want.Filesystem, reopen func() (*place.FS, error)) error {
	dir := place.Dir(l, filesystem)
	text, err := os.ReadFile(filepath.Join(dir, steeredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	keep := false // the kernel refuses the nodes' connections meanwhile
	if now != nil && err == nil {
		same, err := json.Marshal(steeredOf(*now))
		if err == nil && bytes.Equal(text, append(same, '\n')) {
			return nil
		}
		var was want.Filesystem
		keep = err == nil && json.Unmarshal(text, &was) == nil && now.WayOf() == want.Instances && now.Port == was.Port && now.Namespace == was.Namespace
	}
	at, err := reopen()
	if err != nil {
		return err
	}
	nodes, err := at.Nodes()
	if err != nil {
		return err
	}
	server, before := &instances.Server{Dir: instancesDir(dir)}, map[string]instance{}
	records, _ := recorded(filepath.Join(dir, "nodes")) // instances that are not recorded are found too
	for _, h := range records {
		if h.Instance != nil {
			before[h.Node] = *h.Instance
		}
	}
	var waits sync.WaitGroup
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		waits.Go(func() { errs[i] = end(server, at, n, before[n]) })
	}
	waits.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !keep {
		if err := pinsOf(l, filesystem).Remove(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(server.Dir); err != nil {
		return err
	}
	fault.Point("instances of a file server gone")
	if keep {
		return nil // the file tells of the program until the new entry has its own, which may fail
	}
	return os.Remove(filepath.Join(dir, steeredFile))
}
