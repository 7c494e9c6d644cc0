// Package refuse defines the errors with which Berth refuses to act. Each kind is an exit code of the command line.
package refuse

import (
	"errors"
	"fmt"
)

// Kind says why something was refused. Its number is the exit code of the command line.
type Kind int

// The kinds, as docs and --help list them.
const (
	Failed   Kind = 1 // something that should have worked did not
	Invalid  Kind = 2 // wrong usage, or an invalid spec
	Cannot   Kind = 3 // this host cannot: something is missing
	NotFound Kind = 4 // no such node, image or device
	Busy     Kind = 5 // it exists already, or is in use
	Differs  Kind = 6 // plan --detailed-exitcode: apply would change something
)

// Error is a refusal: one sentence about the reason, and the next step for the user.
type Error struct {
	Kind   Kind
	What   string // what was refused, on what, and what the kernel said; lower case, no full stop
	Remedy string // what to do next; may be empty
	Err    error  // cause, if there is one (its text is not repeated in Error)
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.What
	}
	return e.What + "; " + e.Remedy
}

func (e *Error) Unwrap() error { return e.Err }

// Invalidf refuses wrong input (exit 2).
func Invalidf(format string, a ...any) error { return newf(Invalid, "", format, a...) }

// Cannotf refuses something that this host cannot do (exit 3). remedy says what would make it possible; "" if nothing would.
func Cannotf(remedy, format string, a ...any) error { return newf(Cannot, remedy, format, a...) }

// NotFoundf refuses to act on something that does not exist (exit 4).
func NotFoundf(format string, a ...any) error { return newf(NotFound, "", format, a...) }

// Busyf refuses because something exists already or is in use (exit 5).
func Busyf(format string, a ...any) error { return newf(Busy, "", format, a...) }

func newf(k Kind, remedy, format string, a ...any) error {
	err := fmt.Errorf(format, a...)
	return &Error{Kind: k, What: err.Error(), Remedy: remedy, Err: errors.Unwrap(err)}
}

// KindOf returns the kind of the first refusal in err's chain, Failed if there is none, and 0 for nil.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	if r, ok := errors.AsType[*Error](err); ok {
		return r.Kind
	}
	return Failed
}

// Join joins several errors into one, one line each. Its kind is the first refusal's. It is nil if there are none.
func Join(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return errors.Join(errs...)
}
