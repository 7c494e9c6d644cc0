package keeper

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/sys/refuse"
)

// replyOf puts an error into a reply, so that it is the same kind of error at the other end.
func replyOf(err error) reply {
	if err == nil {
		return reply{}
	}
	if ce, ok := errors.AsType[*runner.CommandError](err); ok {
		return reply{Err: ce.Why, Code: ce.Code, Command: ce.Command}
	}
	if re, ok := errors.AsType[*refuse.Error](err); ok {
		return reply{Err: re.What, Kind: re.Kind, Remedy: re.Remedy}
	}
	return reply{Err: err.Error(), Full: errors.Is(err, unix.ENOSPC)}
}

func (r *reply) error() error {
	switch {
	case r.Err == "":
		return nil
	case r.Code != 0:
		return &runner.CommandError{Code: r.Code, Command: r.Command, Why: r.Err}
	case r.Kind != 0:
		return &refuse.Error{Kind: r.Kind, What: r.Err, Remedy: r.Remedy}
	case r.Full:
		return fullError(r.Err)
	}
	return errors.New(r.Err)
}

// fullError is an error of the keeper's that means "no space left on device".
type fullError string

func (e fullError) Error() string     { return string(e) }
func (e fullError) Is(err error) bool { return err == unix.ENOSPC }
