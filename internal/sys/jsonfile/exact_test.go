package jsonfile

import (
	"encoding/json"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

// TestExact: a text is written, and read, as it is, or it is refused.
func TestExact(t *testing.T) {
	for text, fits := range map[string]bool{
		"":                           true,
		"plain":                      true,
		"é \U0001f600 <&> \u2028 \"": true,
		"a real \ufffd":              true,
		`\ufffd`:                     true, // six characters
		`\\ufffd"\`:                  true,
		"w\xe9":                      false,
		"\x80":                       false,
		`\` + "\xff":                 false,
		"\"quoted\" \xff":            false,
		"half a character \xc3":      false,
		"\xed\xb3\xa9":               false, // half of a pair as if it were UTF-8
	} {
		for what, v := range map[string]any{"text": text, "list": []string{"x", text}, "key": map[string]int{text: 1}, "raw": json.RawMessage(`{}`)} {
			data, err := Marshal(v)
			fits := fits || what == "raw"
			if (err == nil) != fits || !fits && refuse.KindOf(err) != refuse.Invalid {
				t.Errorf("%s %q: %s, %v", what, text, data, err)
			}
			if what == "text" && fits {
				var back string
				if err := json.Unmarshal(data, &back); err != nil || back != text || CheckExact(data) != nil {
					t.Errorf("%q becomes %q: %v, %v", text, back, err, CheckExact(data))
				}
			}
		}
		if err := CheckText("word", text); (err == nil) != fits {
			t.Errorf("CheckText of %q: %v", text, err)
		}
	}
	for data, exact := range map[string]bool{
		`{"args":["rm","w\ud83d\ude00"]}`: true,
		`"\ufffd"`:                        true,
		`"\\udce9"`:                       true, // the characters
		`"\"\\\udce9"`:                    false,
		`{"args":["rm","w\udce9"]}`:       false,
		`"\ud83d"`:                        false,
		`"\ud83d\n"`:                      false,
		`"\ud83d\ud83d\ude00"`:            false,
		"\"w\xe9\"":                       false,
		`"\ud8`:                           true, // no JSON at all: the decoder says so
		`"\`:                              true,
	} {
		if err := CheckExact([]byte(data)); (err == nil) != exact {
			t.Errorf("%s: %v", data, err)
		}
	}
	if err := CheckExact([]byte(`{"a":"x\"y","args":["it\"s w\udce9","b"]}`)); err == nil || !strings.HasPrefix(err.Error(), `"it\"s w\udce9" is`) {
		t.Errorf("it names another text: %v", err)
	}
}
