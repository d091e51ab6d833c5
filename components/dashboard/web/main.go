// Command web compiles the page of the dashboard into components/dashboard/bundle. It requires npm, which downloads the
// packages of package-lock.json and verifies their hashes.
//
//	go run .           write the bundle
//	go run . -check    report whether the committed bundle is the one that the sources produce
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/klauspost/compress/gzip"
)

// output is the directory of the bundle.
const output = "../bundle"

// maxSize is the size of the compressed bundle in bytes that must not be exceeded.
const maxSize = 1536 << 10

func main() {
	check := flag.Bool("check", false, "compare the bundle instead of writing it")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	if err := install(); err != nil {
		return err
	}
	if err := command("node_modules/.bin/tsc", "--noEmit"); err != nil {
		return fmt.Errorf("checking types: %w", err)
	}
	files, size, err := compile()
	if err != nil {
		return err
	}
	if size > maxSize {
		return fmt.Errorf("the compressed bundle has %d bytes, more than %d", size, maxSize)
	}
	fmt.Printf("the compressed bundle has %d bytes\n", size)
	if check {
		return compare(files)
	}
	return write(files)
}

// install downloads the npm packages unless those of the lock file are installed.
func install() error {
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		return err
	}
	const marker = "node_modules/.installed"
	if installed, err := os.ReadFile(marker); err == nil && bytes.Equal(installed, lock) {
		return nil
	}
	if err := command("npm", "ci", "--ignore-scripts"); err != nil {
		return fmt.Errorf("installing npm packages: %w", err)
	}
	return os.WriteFile(marker, lock, 0o644)
}

func command(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// compile returns the files of the bundle by their path below output, and the size of those that the program contains.
func compile() (files map[string][]byte, size int, err error) {
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"src/main.tsx", "src/style.css"},
		EntryNames:  "[name]-[hash]", ChunkNames: "[name]-[hash]", Outdir: "assets",
		Bundle: true, Splitting: true, Format: api.FormatESModule, Target: api.ES2022, Metafile: true,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true,
		LegalComments: api.LegalCommentsNone, // the licenses are separate files
		JSX:           api.JSXAutomatic, JSXImportSource: "preact",
		Plugins: []api.Plugin{styleElements()}, LogLevel: api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return nil, 0, errors.New("esbuild reported errors")
	}
	files = map[string][]byte{}
	page, err := os.ReadFile("src/index.html")
	if err != nil {
		return nil, 0, err
	}
	for _, f := range result.OutputFiles {
		name := filepath.Base(f.Path)
		if err := compressInto(files, name, f.Contents); err != nil {
			return nil, 0, err
		}
		for _, entry := range []string{"main-*.js", "style-*.css"} {
			if ok, _ := path.Match(entry, name); ok {
				page = bytes.ReplaceAll(page, []byte(entry), []byte(name))
			}
		}
	}
	if bytes.Contains(page, []byte("-*.")) {
		return nil, 0, errors.New("an entry point of index.html was not compiled")
	}
	if err := compressInto(files, "index.html", page); err != nil {
		return nil, 0, err
	}
	for _, data := range files {
		size += len(data)
	}
	packages, err := bundledPackages(result.Metafile)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range packages {
		if err := license(files, name); err != nil {
			return nil, 0, err
		}
	}
	return files, size, nil
}

// styleElements returns a plugin that replaces the style elements which libraries create, and which the
// Content-Security-Policy of the page blocks, by the element of src/sheet.ts.
func styleElements() api.Plugin {
	return api.Plugin{Name: "style-elements", Setup: func(build api.PluginBuild) {
		build.OnLoad(api.OnLoadOptions{Filter: `node_modules/(@xterm/xterm|style-mod)/.*\.m?js$`}, func(args api.OnLoadArgs) (api.OnLoadResult, error) {
			data, err := os.ReadFile(args.Path)
			if err != nil {
				return api.OnLoadResult{}, err
			}
			text := strings.ReplaceAll(string(data), `createElement("style")`, `createElement("style-sheet")`)
			if text == string(data) {
				return api.OnLoadResult{}, fmt.Errorf("%s creates no style element any more; check that the Content-Security-Policy permits what it does", args.Path)
			}
			return api.OnLoadResult{Contents: &text, Loader: api.LoaderJS}, nil
		})
	}}
}

// compressInto adds a compressed file. The result depends only on the data and the version of the library.
func compressInto(files map[string][]byte, name string, data []byte) error {
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	files["files/"+name+".gz"] = compressed.Bytes()
	return nil
}

// bundledPackages returns the names of the npm packages that the bundle contains.
func bundledPackages(metafile string) ([]string, error) {
	var meta struct {
		Outputs map[string]struct {
			Inputs map[string]struct {
				Bytes int `json:"bytesInOutput"`
			} `json:"inputs"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal([]byte(metafile), &meta); err != nil {
		return nil, fmt.Errorf("reading the list of inputs: %w", err)
	}
	found := map[string]bool{}
	for _, out := range meta.Outputs {
		for input, used := range out.Inputs {
			_, name, ok := strings.Cut(input, "node_modules/")
			if !ok || used.Bytes == 0 {
				continue
			}
			parts := strings.SplitN(name, "/", 3)
			if strings.HasPrefix(name, "@") {
				found[parts[0]+"/"+parts[1]] = true
			} else {
				found[parts[0]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// license adds the license files of an npm package as licenses/NAME@VERSION/FILE. Releases contain them.
func license(files map[string][]byte, name string) error {
	dir := filepath.Join("node_modules", filepath.FromSlash(name))
	data, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return err
	}
	var description struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(data, &description); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(upper, "LICENSE") && !strings.HasPrefix(upper, "NOTICE") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		files[path.Join("licenses", name+"@"+description.Version, e.Name())] = text
		found = true
	}
	if !found {
		return fmt.Errorf("the npm package %s contains no license file", name)
	}
	return nil
}

// committed returns the files of the bundle in the source tree by their path below output.
func committed() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, dir := range []string{"files", "licenses"} {
		root := filepath.Join(output, dir)
		err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return ignoreMissing(err)
			}
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(output, name)
			files[filepath.ToSlash(relative)] = data
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// compare returns an error if the committed bundle differs from files.
func compare(files map[string][]byte) error {
	have, err := committed()
	if err != nil {
		return err
	}
	for name, data := range files {
		if !bytes.Equal(have[name], data) {
			return fmt.Errorf("components/dashboard/bundle/%s is not what the sources produce: run make generate", name)
		}
		delete(have, name)
	}
	for name := range have {
		return fmt.Errorf("components/dashboard/bundle/%s is not part of the bundle: run make generate", name)
	}
	return nil
}

// write replaces the committed bundle by files.
func write(files map[string][]byte) error {
	for _, dir := range []string{"files", "licenses"} {
		if err := os.RemoveAll(filepath.Join(output, dir)); err != nil {
			return err
		}
	}
	for name, data := range files {
		file := filepath.Join(output, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
