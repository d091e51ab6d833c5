// Package staticpod reads pods from a directory of manifests, and keeps the
// API's stand-ins for them, the mirror pods.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
package staticpod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"hyperkube/components/kubelet/pods"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/podfacts"
)

// Sink takes the pods. Its methods are called from the goroutine of each source.
type Sink interface {
	// Set says that there is this pod; the UID changes with its manifest.
	Set(p *v1.Pod)
	// Remove says that there is no such pod any more.
	Remove(uid types.UID)
}

// Source follows a directory. A manifest is a file of one pod, YAML or JSON;
// names that begin with a dot are passed over. The path may be that of a single
// manifest.
type Source struct {
	Dir      string
	NodeName string
	Sink     Sink
	Log      *slog.Logger
	// Ignored is told, once, of a pod that is not run because another manifest has
	// its name; may be nil.
	Ignored func(p *v1.Pod)

	// ignored are those pods, by file.
	ignored map[string]types.UID
	known   map[string]types.UID // by file
	// removed are the files that were removed, though there may be others in their
	// place by now. Such a pod is run anew.
	removed map[string]bool
}

// settle is how long a directory must be quiet before it is read, so that a
// manifest that is being written is not read halfway.
const settle = 50 * time.Millisecond

// Run follows the directory until ctx ends; first is called once after it has
// been read for the first time. The directory is made if it is missing.
func (s *Source) Run(ctx context.Context, first func()) error {
	dir := filepath.Clean(s.Dir)
	watched := []string{filepath.Dir(dir), dir}
	if s.single() {
		watched = watched[:1]
	} else if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("making the directory of static pods: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the directory of static pods: %w", err)
	}
	defer watcher.Close()
	// The folder above tells when the directory itself is made anew.
	for _, path := range watched {
		if err := watcher.Add(path); err != nil {
			return fmt.Errorf("watching the directory of static pods: %w", err)
		}
	}
	s.known, s.removed = map[string]types.UID{}, map[string]bool{}
	s.read()
	first()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching the directory of static pods ended")
			}
			switch {
			case filepath.Clean(event.Name) == dir:
				if event.Has(fsnotify.Create) && !s.single() {
					_ = watcher.Remove(dir) // of the one before, if that is watched still
					if err := watcher.Add(dir); err != nil {
						s.Log.Warn("watching the directory of static pods", "error", err)
					}
				}
			case filepath.Dir(event.Name) != dir:
				continue
			case event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename):
				s.removed[filepath.Join(s.Dir, filepath.Base(event.Name))] = true
			}
			quiet.Reset(settle)
		case err := <-watcher.Errors:
			s.Log.Warn("watching the directory of static pods", "error", err)
			quiet.Reset(settle)
		case <-quiet.C:
			s.read()
		}
	}
}

// read brings the sink up to what the directory holds; without it there are no
// pods. A manifest that cannot be read leaves its pod as it is.
func (s *Source) read() {
	paths, err := s.paths()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Log.Warn("reading the directory of static pods failed", "error", err)
		return
	}
	for path := range s.removed {
		if uid, ok := s.known[path]; ok {
			delete(s.known, path)
			s.Sink.Remove(uid)
		}
	}
	clear(s.removed)
	seen := map[string]bool{}
	names := map[string]string{}
	doubles := map[string]types.UID{} // of which nothing comes, for another has their name
	defer func() { s.ignored = doubles }()
	for _, path := range paths {
		p, err := load(path, s.NodeName)
		if errors.Is(err, errNoFile) {
			continue
		}
		seen[path] = true
		if err != nil {
			s.Log.Warn("a static pod's manifest is not one", "file", path, "error", err)
			continue
		}
		if other, taken := names[p.Namespace+"/"+p.Name]; taken {
			s.Log.Warn("two static pods have one name", "file", path, "other", other)
			if s.Ignored != nil && s.ignored[path] != p.UID {
				s.Ignored(p)
			}
			doubles[path] = p.UID
			continue
		}
		names[p.Namespace+"/"+p.Name] = path
		if s.known[path] == p.UID {
			continue
		}
		if old, ok := s.known[path]; ok {
			s.Sink.Remove(old)
		}
		s.known[path] = p.UID
		s.Sink.Set(p)
	}
	for path, uid := range s.known {
		if !seen[path] {
			delete(s.known, path)
			s.Sink.Remove(uid)
		}
	}
}

// errNoFile says of a path that no manifest is there.
var errNoFile = errors.New("this is no file")

// load reads the pod of a manifest.
func load(path, nodeName string) (*v1.Pod, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	if info.Size() > longestDocument {
		return nil, fmt.Errorf("the manifest is longer than %d bytes", longestDocument)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	return decodeFile(raw, path, nodeName)
}

// Problems tell which manifests of a directory no pod is run of, and why; one that was run
// before goes on as its manifest was.
func Problems(dir string) []error {
	s := &Source{Dir: dir}
	paths, err := s.paths()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return []error{fmt.Errorf("reading the directory of static pods: %w", err)}
	}
	var problems []error
	names := map[string]string{} // files by the pods' names
	for _, path := range paths {
		p, err := load(path, "node")
		if errors.Is(err, errNoFile) {
			continue
		}
		if err == nil {
			key := p.Namespace + "/" + p.Name
			if other := names[key]; other != "" {
				err = fmt.Errorf("its pod has the name of that of %s", other)
			}
			names[key] = path
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("the manifest %s is not run: %w", path, err))
		}
	}
	return problems
}

// single tells whether the path is that of a manifest.
func (s *Source) single() bool {
	info, err := os.Stat(s.Dir)
	return err == nil && info.Mode().IsRegular()
}

// paths are those of what may be manifests.
func (s *Source) paths() ([]string, error) {
	if s.single() {
		return []string{s.Dir}, nil
	}
	entries, err := os.ReadDir(s.Dir)
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(s.Dir, e.Name()))
		}
	}
	return out, err
}

// decodeFile reads a manifest and makes it the pod of this node: its name ends in
// the node's, its UID is a hash of what it says and where it came from.
func decodeFile(raw []byte, file, nodeName string) (*v1.Pod, error) {
	doc, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	p, err := decode(doc, "file", file, nodeName)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err == nil {
		p.Annotations[annotationSeen] = info.ModTime().Format(time.RFC3339Nano)
	}
	return p, nil
}

const annotationSeen = "kubernetes.io/config.seen"

// decode reads one pod that is from a file or from a URL.
func decode(doc []byte, source, from, nodeName string) (*v1.Pod, error) {
	p := &v1.Pod{}
	if err := json.Unmarshal(doc, p); err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	if p.Kind != "Pod" || p.APIVersion != "v1" {
		return nil, fmt.Errorf("want a Pod of v1, got %q of %q", p.Kind, p.APIVersion)
	}
	p.TypeMeta.Kind, p.TypeMeta.APIVersion = "", ""
	if len(p.Spec.Containers) == 0 {
		return nil, errors.New("spec.containers: Required value")
	}
	if p.Name == "" {
		return nil, errors.New("metadata.name: Required value")
	}
	if p.Namespace == "" {
		p.Namespace = v1.NamespaceDefault
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "host:%s\n%s:%s\n", nodeName, source, from)
	hash.Write(doc)
	uid := hex.EncodeToString(hash.Sum(nil))[:32]
	p.UID = types.UID(uid)
	p.Name += "-" + strings.ToLower(nodeName)
	if list := validation.IsDNS1123Subdomain(p.Name); len(list) > 0 {
		return nil, fmt.Errorf("metadata.name: %s", strings.Join(list, "; "))
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[pods.AnnotationHash] = uid
	p.Annotations[pods.AnnotationSource] = source
	p.Spec.NodeName = nodeName
	if p.Spec.Priority == nil && (p.Spec.PriorityClassName == "system-node-critical" || p.Spec.PriorityClassName == "system-cluster-critical") {
		priority := int32(podfacts.SystemCritical)
		if p.Spec.PriorityClassName == "system-node-critical" {
			priority = 2000001000
		}
		p.Spec.Priority = &priority
	}
	p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	pod.Default(p)
	if err := check(p); err != nil {
		return nil, err
	}
	p.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: p.Status.QOSClass}
	return p, nil
}
