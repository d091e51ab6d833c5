// Package bundle contains the compiled page of the dashboard. The sources are in components/dashboard/web.
package bundle

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:generate go run -C ../web .

// files are compressed, and each name ends with .gz.
//
//go:embed files/*.gz
var files embed.FS

// index is the page.
const index = "index.html"

// Handler serves the page for all paths, except that it serves the scripts and style sheets below /assets/.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "only GET is supported", http.StatusMethodNotAllowed)
			return
		}
		name, asset := strings.CutPrefix(r.URL.Path, "/assets/")
		if !asset {
			name = index
		}
		data, err := fs.ReadFile(files, path.Join("files", path.Base(name)+".gz"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		if asset {
			// The names contain a hash of the content.
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		if accepts(r, "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
		} else if data, err = decompress(data); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Vary", "Accept-Encoding")
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data) // the client has closed the connection
	})
}

// accepts reports whether the client accepts a content encoding.
func accepts(r *http.Request, encoding string) bool {
	for _, line := range r.Header.Values("Accept-Encoding") {
		for one := range strings.SplitSeq(line, ",") {
			name, quality, _ := strings.Cut(strings.TrimSpace(one), ";")
			if name == encoding && strings.TrimSpace(quality) != "q=0" {
				return true
			}
		}
	}
	return false
}

func decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
