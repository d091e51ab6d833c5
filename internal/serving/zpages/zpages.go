// Package zpages implements the debugging endpoints of components: status (/statusz), command line
// flags (/flagz), configuration (/configz), log verbosity (/debug/flags/v) and profiles
// (/debug/pprof). The component must authorize access to them.
//
// https://kubernetes.io/docs/reference/instrumentation/zpages/
package zpages

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/pprof"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/base/version"
)

// group is the API group of the pages' kinds. Its version v1alpha1 is deprecated.
const group = "config.k8s.io"

// Flags maps the names of command line flags to their values.
type Flags map[string]string

// FlagsOf returns the names and current values of all flags of a command, including those with their default. Values
// of secret flags are not hidden.
func FlagsOf(set *pflag.FlagSet) Flags {
	out := Flags{}
	set.VisitAll(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
	return out
}

// statusz is the response of /statusz, as a structured object: versions, start time and paths of
// the component.
type statusz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion,omitempty"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion,omitempty"`
	Paths             []string    `json:"paths"`
}

// flagz is the response of /flagz, as a structured object: the values of the component's flags.
type flagz struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Flags             Flags `json:"flags,omitempty"`
}

const header = "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// Statusz returns the /statusz handler of a component. paths are its served paths, of which the page lists the first
// segments; those of the API and of its discovery documents are left out.
func Statusz(component string, paths ...string) http.Handler {
	var dirs []string
	for _, p := range paths {
		parts := strings.Split(p, "/")
		if len(parts) < 2 || parts[1] == "" || slices.Contains([]string{"api", "apis", "openid", "openapi", ".well-known"}, parts[1]) {
			continue
		}
		dirs = append(dirs, "/"+parts[1])
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	return page("statusz", func(kind metav1.TypeMeta) (any, string) {
		v := version.Get()
		began := started()
		up := max(0, int64(time.Since(began).Seconds()))
		s := &statusz{
			TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: component}, StartTime: metav1.Time{Time: began}, UptimeSeconds: up,
			GoVersion: goruntime.Version(), BinaryVersion: strings.TrimPrefix(v.GitVersion, "v"), EmulationVersion: v.Major + "." + v.Minor, Paths: dirs,
		}
		var text strings.Builder
		fmt.Fprintf(&text, header, component, "statusz")
		fmt.Fprintf(&text, "\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			began.UTC().Format(time.UnixDate), up/3600, up/60%60, up%60, s.GoVersion, s.BinaryVersion, s.EmulationVersion, strings.Join(dirs, " "))
		return s, text.String()
	})
}

// started returns the start time of the process, or the current time if it is not available.
func started() time.Time {
	self, err := procfs.Self()
	if err != nil {
		return time.Now()
	}
	stat, err := self.Stat()
	if err != nil {
		return time.Now()
	}
	at, err := stat.StartTime()
	if err != nil {
		return time.Now()
	}
	return time.Unix(int64(at), 0)
}

// Flagz returns the /flagz handler of a component, which shows the command line flags and values in flags.
func Flagz(component string, flags Flags) http.Handler {
	return page("flagz", func(kind metav1.TypeMeta) (any, string) {
		var text strings.Builder
		fmt.Fprintf(&text, header, component, "flagz")
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(&text, "%s=%s\n", name, flags[name])
		}
		return &flagz{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: component}, Flags: flags}, text.String()
	})
}

// page returns the handler of an endpoint with the name (statusz or flagz). Depending on the Accept header it
// responds with the text or, as JSON or YAML, with the object that content returns for a kind and version. The
// version v1alpha1 gets a Warning header. It responds with 406 if it supports none of the accepted media types.
func page(name string, content func(metav1.TypeMeta) (any, string)) http.Handler {
	kind := strings.ToUpper(name[:1]) + name[1:]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		media, v, ok := negotiate(r.Header.Get("Accept"), kind)
		if !ok {
			notAcceptable(w, r)
			return
		}
		obj, text := content(metav1.TypeMeta{Kind: kind, APIVersion: group + "/" + v})
		if media == "text/plain" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, text)
			return
		}
		raw, err := json.MarshalIndent(obj, "", "  ")
		if err == nil && media == "application/yaml" {
			raw, err = yaml.JSONToYAML(raw)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if v == "v1alpha1" {
			w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, name))
		}
		w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", media, group, v, kind))
		_, _ = w.Write(raw)
	})
}

// negotiate returns the first media type in an Accept header that is supported: text, or a version of kind in JSON or
// YAML. version is empty for text, which is also the result for an empty header. ok is false if there is none.
func negotiate(accept, kind string) (media, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", "", true
	}
	for one := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(one)
		if err != nil {
			continue
		}
		switch media {
		case "text/plain", "text/*", "*/*":
			if params["as"] == "" {
				return "text/plain", "", true
			}
		case "application/json", "application/yaml":
			if v := params["v"]; params["g"] == group && params["as"] == kind && (v == "v1beta1" || v == "v1alpha1") {
				return media, v, true
			}
		}
	}
	return "", "", false
}

// notAcceptable responds with 406 Not Acceptable and a Status object. The Status is in YAML if the first media type of
// the Accept header is application/yaml without the parameter "as", otherwise in JSON.
func notAcceptable(w http.ResponseWriter, r *http.Request) {
	raw, err := json.MarshalIndent(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: application/json, application/yaml, text/plain", Code: http.StatusNotAcceptable,
	}, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	media := "application/json"
	one, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	if first, params, _ := mime.ParseMediaType(one); first == "application/yaml" && params["as"] == "" {
		if text, err := yaml.JSONToYAML(raw); err == nil {
			media, raw = first, text
		}
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusNotAcceptable)
	_, _ = w.Write(raw)
}

// Configz returns the /configz handler of a component, which shows its configuration as JSON. name is the key of the
// configuration; config returns the current one for each request and must be safe for concurrent use.
func Configz(name string, config func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		raw, err := json.Marshal(map[string]any{name: config()})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(raw)
	})
}

// SetVerbosity sets level according to a value of the flag -v: 4 and above selects the debug level, less the info
// level.
func SetVerbosity(level *slog.LevelVar, v int) {
	if v >= 4 {
		level.Set(slog.LevelDebug)
	} else {
		level.Set(slog.LevelInfo)
	}
}

// DebugFlags returns the handlers below /debug/flags by path. A PUT of a number to /debug/flags/v changes level like
// the flag -v. Other methods get status 406, other bodies 400.
func DebugFlags(level *slog.LevelVar) map[string]http.Handler {
	index := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n<table>\n<tr>%s<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n", html.EscapeString("v"))
	})
	return map[string]http.Handler{
		"/debug/flags": index, "/debug/flags/": index,
		"/debug/flags/v": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				plain(w, http.StatusNotAcceptable, "unsupported http method")
				return
			}
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
			if err != nil {
				plain(w, http.StatusBadRequest, "error reading request body: "+err.Error())
				return
			}
			v, err := strconv.ParseUint(string(body), 10, 31)
			if err != nil {
				plain(w, http.StatusBadRequest, err.Error())
				return
			}
			SetVerbosity(level, int(v))
			plain(w, http.StatusOK, "successfully set klog.logging.verbosity to "+string(body))
		}),
	}
}

// Profiles returns the handlers of net/http/pprof by path, all below /debug/pprof.
func Profiles() map[string]http.Handler {
	return map[string]http.Handler{
		"/debug/pprof":         http.RedirectHandler("/debug/pprof/", http.StatusFound),
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
}

// plain responds with the status code and a line of plain text.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}
