package step

// Line is a step of a plan as users see it.
type Line struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
	Note string `json:"note,omitempty"` // what a person should know about it
}

// Lines returns the steps as users see them. A step with a method Line words itself.
func Lines(steps []Step) []Line {
	all := make([]Line, len(steps))
	for i, s := range steps {
		all[i] = Line{Kind: s.Kind(), Text: s.String()}
		if l, ok := s.(interface{ Line() (text, note string) }); ok {
			all[i].Text, all[i].Note = l.Line()
		}
	}
	return all
}
