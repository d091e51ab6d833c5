// Command release makes the files of a release from programs that are already built: an archive, packages for
// Debian and Fedora, a container image, and software bills of materials for each architecture, the install
// script, and checksums of all of them. The same input results in the same bytes: files are sorted, and have one
// owner and one time, that of the commit. `make release` builds the programs and runs this command.
//
//	go run ./scripts/release -version v1.37.2+hyperkube.0 -nfpm bin/nfpm amd64=bin
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config is the configuration of a release.
type config struct {
	version string    // version of the program, with a leading "v"
	commit  string    // full hash of the commit
	time    time.Time // time of the commit
	out     string    // directory of the results; it is replaced
	work    string    // directory of intermediate files; it is replaced
	manual  string    // directory of the manual pages
	nfpm    string    // path of nfpm
	host    string    // program of this machine's architecture, which generates the completion scripts
}

// target is the build of one architecture.
type target struct {
	arch string
	// program and runtime are the main program and the program of the container runtime, which the main
	// program embeds.
	program, runtime string
	// compiler is the C compiler of the runtime.
	compiler string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var c config
	flag.StringVar(&c.version, "version", "", "version of the program, with a leading v")
	flag.StringVar(&c.commit, "commit", "", "hash of the commit")
	flag.StringVar(&c.out, "out", "bin/release", "directory of the results")
	flag.StringVar(&c.work, "work", "bin/release-work", "directory of intermediate files")
	flag.StringVar(&c.manual, "manual", "", "directory of the manual pages")
	flag.StringVar(&c.nfpm, "nfpm", "", "path of nfpm")
	flag.StringVar(&c.host, "host", "bin/hyperkube", "program of this machine's architecture")
	lock := flag.Bool("lock", false, "only write the current versions of the Debian packages of the image to "+lockFile)
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: release [flags] ARCH=PROGRAM,RUNTIME,COMPILER ...")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	if *lock {
		err = writeLock(ctx, lockFile)
	} else {
		err = run(ctx, c, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes a release of the targets in args. The environment variable SOURCE_DATE_EPOCH is the
// time of all files.
func run(ctx context.Context, c config, args []string) error {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("parsing SOURCE_DATE_EPOCH: %w", err)
	}
	c.time = time.Unix(epoch, 0).UTC()
	targets, err := parseTargets(args)
	if err != nil {
		return err
	}
	for _, dir := range []string{c.out, c.work} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing the results of an earlier release: %w", err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("creating a directory: %w", err)
		}
	}
	for _, t := range targets {
		if err := c.release(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.arch, err)
		}
	}
	if err := copyFile("packaging/install.sh", filepath.Join(c.out, "install.sh"), 0o755); err != nil {
		return err
	}
	return writeChecksums(c.out)
}

// parseTargets parses arguments of the form ARCH=PROGRAM,RUNTIME,COMPILER.
func parseTargets(args []string) ([]target, error) {
	var targets []target
	for _, arg := range args {
		arch, rest, _ := strings.Cut(arg, "=")
		parts := strings.Split(rest, ",")
		if arch == "" || len(parts) != 3 {
			return nil, fmt.Errorf("parsing %q: must be ARCH=PROGRAM,RUNTIME,COMPILER", arg)
		}
		targets = append(targets, target{arch: arch, program: parts[0], runtime: parts[1], compiler: parts[2]})
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("no architectures")
	}
	return targets, nil
}

// name returns the name of a release file of the target: program, version and architecture,
// followed by suffix.
func (c config) name(t target, suffix string) string {
	return fmt.Sprintf("hyperkube-%s-linux-%s%s", c.version, t.arch, suffix)
}

// release makes all files of one architecture: archive, packages, image and bills of materials.
func (c config) release(ctx context.Context, t target) error {
	modules, err := listModules(ctx, t)
	if err != nil {
		return err
	}
	libraries, err := staticLibraries(ctx, t.compiler)
	if err != nil {
		return err
	}
	packages, err := bundledPackages(bundleLicenses)
	if err != nil {
		return err
	}
	components := slices.Concat(modules, packages, libraries)
	tree, err := c.installTree(ctx, t, components)
	if err != nil {
		return err
	}
	archive := c.name(t, ".tar.gz")
	if err := writeArchive(filepath.Join(c.out, archive), strings.TrimSuffix(archive, ".tar.gz"), tree, c.time); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := c.pack(ctx, t, format, tree); err != nil {
			return err
		}
	}
	program := bom{config: c, target: t, name: c.name(t, ""), binary: t.program, components: components}
	if err := program.write(filepath.Join(c.out, c.name(t, ".spdx.json"))); err != nil {
		return err
	}
	base, err := debianTree(ctx, t.arch, filepath.Join(c.work, "debian"))
	if err != nil {
		return err
	}
	if err := c.writeImage(filepath.Join(c.out, c.name(t, ".oci.tar")), t, base.tree, tree); err != nil {
		return err
	}
	image := program
	image.name, image.components = c.name(t, ".oci"), append(components, base.components...)
	return image.write(filepath.Join(c.out, c.name(t, ".oci.spdx.json")))
}
