// Package upload gives a command that berthd runs for a client on another host the client's files, under the names that the
// command line has for them.
package upload

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// variable is the variable of the environment that says which files were sent.
const variable = "BERTH_SENT"

// File is one of them.
type File struct {
	Name  string `json:"name"`            // as the command line has it
	Dir   string `json:"dir"`             // its folder, where it comes from
	FD    int    `json:"fd,omitempty"`    // the descriptor with its content
	Errno uint32 `json:"errno,omitempty"` // why it could not be read there
}

// Marshal returns the variable for these files.
func Marshal(all []File) (string, error) {
	text, err := json.Marshal(all)
	return variable + "=" + string(text), err
}

// Open opens a file that was sent. ok is false if none of this name was: then the file is one of this host.
func Open(name string) (f *os.File, dir string, ok bool, err error) {
	text := os.Getenv(variable)
	if text == "" {
		return nil, "", false, nil
	}
	var all []File
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, "", true, fmt.Errorf("read %s: %w", variable, err)
	}
	for _, s := range all {
		if s.Name != name {
			continue
		}
		if s.Errno != 0 {
			return nil, s.Dir, true, &fs.PathError{Op: "open", Path: name, Err: syscall.Errno(s.Errno)}
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", s.FD)) // from its beginning
		return f, s.Dir, true, err
	}
	return nil, "", false, nil
}
