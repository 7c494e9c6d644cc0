package report

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/result"
	"berth/internal/bench/stat"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func open(t testing.TB, path string) *Report {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Read(f, "result")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func write(t testing.TB, form func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := form(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	r := open(t, "testdata/small.json")
	testkit.Golden(t, "testdata/small.txt", write(t, r.Text))
	testkit.Golden(t, "testdata/small.csv", write(t, r.CSV))
	page := write(t, r.HTML)
	page = strings.Replace(page, pageStyle, "STYLE", 1)
	testkit.Golden(t, "testdata/small.html", regexp.MustCompile(`base64,[A-Za-z0-9+/=]+`).ReplaceAllString(page, "base64,DATA"))
}

// TestFormats shows the JSON of each command of berth bench, and an experiment of each kind.
func TestFormats(t *testing.T) {
	for _, path := range []string{
		"testdata/small.json", "testdata/disk.json", "../result/testdata/sample.json", "../../../docs/evidence/null-rows.json.gz",
		"../../../docs/evidence/isolation.json.gz",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r := open(t, path)
			if a := r.Answer(); len(a.Groups) == 0 {
				t.Errorf("no verdict: %+v", a)
			}
			checkForms(t, r)
		})
	}
}

// checkForms checks the properties that every report has.
func checkForms(t testing.TB, r *Report) {
	t.Helper()
	for line := range strings.Lines(write(t, r.Text)) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(write(t, r.CSV))).ReadAll()
	if err != nil {
		t.Errorf("the table: %v", err)
	} else if d := cmp.Diff(columns[:], rows[0]); d != "" {
		t.Errorf("the head of the table: %s", d)
	}
	page := write(t, r.HTML)
	if !utf8.ValidString(page) {
		t.Error("the page is not UTF-8")
	}
	for _, bad := range []string{"<script", "<img", "<iframe", "<link", "http://", "https://", "ZgotmplZ", "NaN", "+Inf", "%!"} {
		for at := range strings.SplitSeq(stripData(page), "\n") {
			if strings.Contains(at, bad) {
				t.Errorf("the page has %s: %s", bad, at)
			}
		}
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] {
			t.Errorf("two elements have the id %s", m[1])
		}
		ids[m[1]] = true
	}
	for _, tag := range []string{"section", "table", "svg", "figure", "details", "dl", "ul", "div"} {
		if a, b := strings.Count(page, "<"+tag), strings.Count(page, "</"+tag+">"); a != b {
			t.Errorf("%d of <%s> and %d of its end", a, tag, b)
		}
	}
}

func stripData(page string) string {
	return regexp.MustCompile(`base64,[A-Za-z0-9+/=]+`).ReplaceAllString(page, "")
}

// TestNothingOfTheUserIsMarkup puts markup into every text of a report and checks that the page escapes it.
func TestNothingOfTheUserIsMarkup(t *testing.T) {
	const evil = `<script>alert(1)</script><img src=x onerror=alert(2)>"'</style></title></svg>` + "\x1b[2J\u202e\u009b"
	raw, err := os.ReadFile("testdata/small.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	spoiled, err := json.Marshal(spoil(doc, "", evil))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(bytes.NewReader(spoiled), evil)
	if err != nil {
		t.Fatal(err)
	}
	checkForms(t, r)
	for name, text := range map[string]string{"text": write(t, r.Text), "csv": write(t, r.CSV), "html": write(t, r.HTML)} {
		if strings.ContainsAny(text, "\x1b\u202e\u009b") {
			at := strings.IndexAny(text, "\x1b\u202e\u009b")
			t.Errorf("%s: something moves the cursor or turns the text round: %q", name, text[max(at-150, 0):at+20])
		}
	}
	if page := write(t, r.HTML); !strings.Contains(page, "&lt;script&gt;alert(1)") {
		t.Error("the texts are not shown at all")
	}
}

// spoil appends evil to all strings of a document except times and names that others refer to.
func spoil(v any, key, evil string) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = spoil(v[k], k, evil)
		}
	case []any:
		for i := range v {
			v[i] = spoil(v[i], key, evil)
		}
	case string:
		switch key {
		case "format", "started", "ended", "start", "arm", "measure", "verdict", "verdict_corrected", "unit":
		default:
			if v != "host" && v != "null" && v != "node" && v != "iops" {
				return v + evil
			}
		}
	}
	return v
}

// TestRawIsAttached checks that the page holds the JSON it was made from, compressed if it is too long for a link.
func TestRawIsAttached(t *testing.T) {
	r := open(t, "testdata/small.json")
	attached := func(name string) []byte {
		m := regexp.MustCompile(`download="` + regexp.QuoteMeta(name) + `" href="data:[a-z/]+;base64,([A-Za-z0-9&#;+/=]+)"`).FindStringSubmatch(write(t, r.HTML))
		if m == nil {
			t.Fatalf("no link to %s", name)
		}
		data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(m[1], "&#43;", "+"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if !bytes.Equal(attached("result.json"), r.Raw) {
		t.Error("the JSON is not the one that was read")
	}
	if got := string(attached("result.csv")); got != write(t, r.CSV) {
		t.Errorf("the table is another one: %s", got)
	}
	r.Raw = append(r.Raw, bytes.Repeat([]byte("                \n"), 100_000)...)
	again, err := Read(bytes.NewReader(attached("result.json.gz")), "result")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Raw, r.Raw) {
		t.Error("compressed, the JSON is not the one that was read")
	}
}

func TestReadRefuses(t *testing.T) {
	var cut bytes.Buffer
	z := gzip.NewWriter(&cut)
	if _, err := z.Write([]byte(`{"format":"berth-bench/2"}`)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "not JSON": "name: x", "a list": "[]", "no format": "{}", "another": `{"format": "other/1"}`,
		"wrong type": `{"format": "berth-bench/2", "experiments": 3}`, "half a gzip file": cut.String() + "\x1f\x8b",
	} {
		_, err := Read(strings.NewReader(text), "result")
		if refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFirstLine checks that text and page begin with the warnings: partial, emulated, disturbed.
func TestFirstLine(t *testing.T) {
	r := open(t, "testdata/small.json")
	r.Study.Partial, r.Study.Emulated = true, "QEMU TCG"
	r.Study.Experiments[0].Rows[0].Flags = []result.Flag{result.Disturbed}
	text, page := write(t, r.Text), write(t, r.HTML)
	first, _, _ := strings.Cut(strings.Join(strings.Fields(text), " "), "comparison")
	_, body, _ := strings.Cut(page, "<body>")
	body, _, _ = strings.Cut(body, "<main>")
	for _, want := range []string{"PARTIAL", "EMULATED (QEMU TCG)", "DISTURBED"} {
		if !strings.Contains(first, want) || !strings.Contains(body, want) {
			t.Errorf("%s is not said first:\n%s\n%s", want, first, body)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, path := range []string{"testdata/small.json", "testdata/disk.json"} {
		raw, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"format":"berth-bench/2","experiments":[{"rows":[{}]}]}`))
	f.Add([]byte(`{"format":"other/1","study":{"format":"berth-bench/2","experiments":[{"rows":[{"asked":{"a":1}}]}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Read(bytes.NewReader(raw), "result")
		if err == nil {
			checkForms(t, r)
		}
	})
}

// TestVerdictOfTheTable checks that the corrected verdict is shown, beside that of the row by itself.
func TestVerdictOfTheTable(t *testing.T) {
	c := &stat.Comparison{Pairs: 6, PenaltyPct: 9, CI95Pct: &[2]float64{1, 20}, Verdict: stat.Worse}
	s := result.Study{Format: result.Format, Experiments: []result.Experiment{{
		About: result.About{Name: "disk", Measures: []result.Measure{{Name: "iops", Compared: true}}},
		Arms:  []result.Arm{{Name: result.Host}, {Name: result.Node}},
		Rows:  []result.Row{{Name: "read 4K x1", Compared: []result.Comparison{{Arm: result.Node, Measure: "iops", Penalty: c, P: .03, PEquiv: .9, Corrected: stat.Undecided}}}},
	}}}
	r, err := Read(strings.NewReader(write(t, s.JSON)), "result")
	if err != nil {
		t.Fatal(err)
	}
	if a := r.Answer(); len(a.Groups) != 1 || a.Groups[0].Verdict != stat.Undecided || !strings.Contains(a.Groups[0].Items[0], "by itself worse") {
		t.Errorf("%+v", a.Groups)
	}
}

// TestChromium checks the page in a browser, light and dark, as wide as a telephone and as a screen: only tables are wider
// than the window, and the background has the colour of the scheme.
func TestChromium(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium")
	}
	dir := t.TempDir()
	for _, from := range []string{"testdata/small.json", "../../../docs/evidence/isolation.json.gz"} {
		name := plainName(from)
		page := filepath.Join(dir, name+".html")
		text := write(t, open(t, from).HTML)
		for _, width := range []int{400, 1200} {
			// This script, which real pages do not have, puts its measurements into the title for --dump-dom. Chromium's window
			// has at least 500 pixels, so the script sets the width of the page itself.
			script := fmt.Sprintf(`<script>document.documentElement.style.width = "%dpx"; document.title = [document.body.scrollWidth,`+
				` getComputedStyle(document.body).backgroundColor, document.querySelectorAll("svg").length].join(" ")</script>`, width)
			measured := filepath.Join(dir, name+"-measured.html")
			for path, text := range map[string]string{page: text, measured: strings.Replace(text, "</body>", script+"</body>", 1)} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for scheme, ground := range map[string]color.RGBA{"light": {0xff, 0xff, 0xff, 0xff}, "dark": {0x14, 0x17, 0x1b, 0xff}} {
				t.Run(fmt.Sprintf("%s %d %s", name, width, scheme), func(t *testing.T) {
					shot := filepath.Join(dir, "page.png")
					args := []string{
						"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + filepath.Join(dir, "profile"),
						fmt.Sprintf("--window-size=%d,2000", width), "--blink-settings=preferredColorScheme=" + map[string]string{"light": "1", "dark": "0"}[scheme],
					}
					var said bytes.Buffer
					dump := exec.Command(browser, append(args, "--dump-dom", "file://"+measured)...)
					dump.Stderr = &said
					dom, err := dump.Output()
					if err != nil {
						t.Fatalf("%v: %s", err, said.String())
					}
					want := fmt.Sprintf("<title>%d rgb(%d, %d, %d) %d</title>", width, ground.R, ground.G, ground.B, strings.Count(text, "<svg"))
					if got := regexp.MustCompile(`<title>.*?</title>`).Find(dom); string(got) != want {
						t.Errorf("width, ground, drawings: %s, want %s", got, want)
					}
					if out, err := exec.Command(browser, append(args, "--screenshot="+shot, "file://"+page)...).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					checkPicture(t, shot, width, ground)
				})
			}
		}
	}
}

// checkPicture checks the width of a picture, the colour of its background, and that text stands out from it.
func checkPicture(t *testing.T, path string, width int, ground color.RGBA) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	shot, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if b := shot.Bounds(); b.Dx() != width || b.Dy() != 2000 {
		t.Fatalf("the picture is %v", b)
	}
	inked, all := 0, 0
	for y := 100; y < 2000; y += 3 {
		if got := color.RGBAModel.Convert(shot.At(4, y)); got != ground {
			t.Fatalf("the ground at 4,%d is %v, want %v", y, got, ground)
		}
		for x := 0; x < width; x += 3 {
			r, g, b, _ := shot.At(x, y).RGBA()
			far := 0
			for _, d := range []int{int(r>>8) - int(ground.R), int(g>>8) - int(ground.G), int(b>>8) - int(ground.B)} {
				far = max(far, d, -d)
			}
			all++
			if far > 100 {
				inked++
			}
		}
	}
	if part := float64(inked) / float64(all); part < .01 || part > .3 {
		t.Errorf("%.1f %% of the picture differ much from the ground", 100*part)
	}
}

// plainName returns the name of a file without folder and extension.
func plainName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}
