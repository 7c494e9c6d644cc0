package spec
import ("testing";"time";"strings";"fmt";"github.com/goccy/go-yaml/lexer")
func TestSlow(t *testing.T){
 n := 1<<17
 for name, unit := range map[string]string{"docs":"---\nname: a\n","keys":"a: 1\n","items":"- a\n","seqs":"- - a\n","flow":"[],","flowmap":"{a: b}, ","comment":"# x\n","text":"a","quote":"\"","squote":"'a' ","lit":"a: |\n  x\n","indent":" a:\n","colon":"a: ", "blank":"\n", "cr":"\r", "spaces":" ", "tabs":"\t","q":"? ","bang":"! ","pct":"%a\n","dash":"-","dashsp":"- ", "open":"[","pipe":"|\n","gt":"a: >\n", "bs":"\\", "nodes":"---\nname: a\nimage: host\ncommand: [/bin/true]\nnetwork: [{mode: bridge}]\n"} {
  for _, pre := range []string{"", "command: [", "name: \"", "x: |\n  "} {
   s := pre+strings.Repeat(unit, (n-len(pre))/len(unit))
   t0 := time.Now(); tk := lexer.Tokenize(s); dl := time.Since(t0); t0=time.Now(); _, err := Parse("x", []byte(s)); d := time.Since(t0)
   if d > 80*time.Millisecond { e:=fmt.Sprint(err); fmt.Println(name, pre, d.Round(time.Millisecond), "lex", dl, len(tk), len(e), e[:min(len(e),100)]) }
  }
 }
}
