package logging

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"hyperkube/components/logging/query"
)

// printer prints lines of logs for users or as JSON.
type printer struct {
	out              io.Writer
	enc              *json.Encoder // nil for text
	prefix, colors   bool
	timestamps, many bool // many: of several namespaces
}

// newPrinter returns a printer that writes to out, a buffer of terminal.
func newPrinter(out io.Writer, o *logsOptions, terminal io.Writer) *printer {
	p := &printer{out: out, timestamps: o.timestamps, many: o.allNamespaces, prefix: !o.noPrefixes && (o.params.Pod == "" || o.params.Container == "")}
	if o.output == "json" {
		p.enc = json.NewEncoder(out)
		p.enc.SetEscapeHTML(false)
	}
	f, isFile := terminal.(*os.File)
	p.colors = o.color == "always" || o.color == "auto" && isFile && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
	return p
}

// colors are the ANSI colors of pods. Red is reserved for errors.
var colors = []int{32, 33, 34, 35, 36, 92, 93, 94, 95, 96}

func (p *printer) print(l query.Line) error {
	if p.enc != nil {
		return p.enc.Encode(l)
	}
	var prefix strings.Builder
	if p.timestamps {
		prefix.WriteString(l.Time.Format(time.RFC3339Nano) + " ")
	}
	if p.prefix {
		name := l.Pod + "/" + l.Container
		if l.File != "" {
			name = l.Node + "/" + l.File
		} else if p.many {
			name = l.Namespace + "/" + name
		}
		if p.colors {
			h := fnv.New32a()
			_, _ = io.WriteString(h, name) // a hash returns no errors
			name = fmt.Sprintf("\x1b[%dm%s\x1b[0m", colors[h.Sum32()%uint32(len(colors))], name)
		}
		prefix.WriteString(name + "  ")
	}
	for text := range strings.SplitSeq(l.Text, "\n") {
		if _, err := io.WriteString(p.out, prefix.String()+text+"\n"); err != nil {
			return err
		}
	}
	return nil
}
