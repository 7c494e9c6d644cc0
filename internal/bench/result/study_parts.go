package result

import (
	"slices"
	"time"
)

// Experiment returns the experiment with this name; nil if there is none.
func (s *Study) Experiment(name string) *Experiment {
	i := slices.IndexFunc(s.Experiments, func(e Experiment) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Experiments[i]
}

// Begin puts an experiment into the study. It replaces the description of one that is there already, whose trials stay.
func (s *Study) Begin(tool *Tool, now Experiment) {
	if tool != nil && !slices.Contains(s.Tools, *tool) {
		s.Tools = append(s.Tools, *tool)
	}
	if e := s.Experiment(now.Name); e != nil {
		now.Trials = e.Trials
		*e = now
		return
	}
	s.Experiments = append(s.Experiments, now)
}

// SetSession notes how far a session is.
func (s *Study) SetSession(now Session) {
	if i := slices.IndexFunc(s.Sessions, func(x Session) bool { return x.Number == now.Number }); i >= 0 {
		s.Sessions[i] = now
		return
	}
	s.Sessions = append(s.Sessions, now)
}

// Wall is how long the trials of a session took together.
func (e *Experiment) Wall(session int) time.Duration {
	sum := int64(0)
	for _, t := range e.Trials {
		if t.Session == session {
			sum += t.WallMS
		}
	}
	return time.Duration(sum) * time.Millisecond
}
