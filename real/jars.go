package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed poms/kafka.xml
var kafkaPOM string

//go:embed poms/connect.xml
var connectPOM string

// Names of the jar sets. They stay apart: Debezium needs an older Connect
// than the broker's.
const (
	kafkaJars   = "kafka"
	connectJars = "connect"
)

// inventory says what a complete set of jars is.
type inventory struct {
	POM  string           `json:"pom"` // sha256
	Jars map[string]int64 `json:"jars"`
}

// jars are the class paths of the broker and, when it is wanted, of the worker.
func (h *home) jars(ctx context.Context, debezium bool) (kafka, connect string, err error) {
	kafka, err = h.classPath(ctx, kafkaJars, kafkaPOM)
	if err == nil && debezium {
		connect, err = h.classPath(ctx, connectJars, connectPOM)
	}
	return kafka, connect, err
}

// classPath is the class path of a set, which Maven fetches when it is not
// there as its pom wants it.
func (h *home) classPath(ctx context.Context, set, pom string) (string, error) {
	dir := h.path("jars", set)
	if !complete(dir, pom) {
		if err := h.fetch(ctx, set, pom); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "*"), nil
}

// complete tells whether dir holds every jar of the pom, whole.
func complete(dir, pom string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "inventory.json"))
	var inv inventory
	if err != nil || json.Unmarshal(b, &inv) != nil || inv.POM != digest(pom) || len(inv.Jars) == 0 {
		return false
	}
	for name, size := range inv.Jars {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Size() != size {
			return false
		}
	}
	return true
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// fetch resolves a pom's jars into a new folder and puts it in place whole.
func (h *home) fetch(ctx context.Context, set, pom string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("mvn is not found, and the jars are not there yet: install Maven (Debian: apt-get install maven)")
	}
	began := time.Now()
	h.say("fetching the jars of %s with Maven; this happens once", set)
	if err := h.write("jars/"+set+".pom.xml", pom); err != nil {
		return err
	}
	fresh := h.path("jars", set+".new")
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("clearing %s: %w", fresh, err)
	}
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-f", h.path("jars", set+".pom.xml"),
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+fresh)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetching the jars of %s with Maven: %w: %s", set, err, lastLines(string(out), 5))
	}
	n, err := takeInventory(fresh, pom)
	if err != nil {
		return fmt.Errorf("fetching the jars of %s: %w", set, err)
	}
	dir := h.path("jars", set)
	if err := errors.Join(os.RemoveAll(dir), os.Rename(fresh, dir)); err != nil {
		return fmt.Errorf("putting the jars of %s in place: %w", set, err)
	}
	h.say("%d jars of %s in %.0f s", n, set, time.Since(began).Seconds())
	return nil
}

func takeInventory(dir, pom string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	inv := inventory{POM: digest(pom), Jars: map[string]int64{}}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		if strings.HasSuffix(e.Name(), ".jar") {
			inv.Jars[e.Name()] = info.Size()
		}
	}
	if len(inv.Jars) == 0 {
		return 0, errors.New("Maven brought none")
	}
	b, err := json.MarshalIndent(inv, "", "  ")
	if err != nil {
		return 0, err
	}
	return len(inv.Jars), os.WriteFile(filepath.Join(dir, "inventory.json"), append(b, '\n'), 0o644)
}

// lastLines keeps the end of a program's output short enough for an error.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " / ")
}
