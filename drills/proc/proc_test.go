package proc

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A process may be another program than this one.
func TestOtherProgram(t *testing.T) {
	var said string
	p, err := Start(Config{Name: "a shell", Program: "/bin/sh", Args: []string{"-c", "echo it is another"}, Log: filepath.Join(t.TempDir(), "log"),
		OnLine: func(line []byte) { said += string(line) }})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if said != "it is another" {
		t.Errorf("it said %q", said)
	}
}

// A filled disk takes nothing until it is freed.
func TestDisk(t *testing.T) {
	d, err := NewDisk(2 << 20)
	if err != nil {
		t.Skipf("this process may not make one: %v", err)
	}
	defer d.Close()
	write := func() error {
		return os.WriteFile(filepath.Join(d.Dir(), "file"), make([]byte, 64<<10), 0o644)
	}
	for range 2 {
		if err := errors.Join(os.RemoveAll(filepath.Join(d.Dir(), "file")), d.Fill()); err != nil {
			t.Fatal(err)
		}
		if err := write(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("writing to a full disk: %v", err)
		}
		if err := errors.Join(d.Free(), d.Free(), write()); err != nil {
			t.Error(err)
		}
	}
}
