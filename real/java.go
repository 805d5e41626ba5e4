package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// minJava is the oldest Java that a Kafka 4 broker runs on.
const minJava = 17

var javaVersion = regexp.MustCompile(`version "(\d+)(?:\.(\d+))?`)

// findJava is the machine's java, or what to do about there being none.
func findJava(ctx context.Context) (string, error) {
	java, err := exec.LookPath("java")
	if dir := os.Getenv("JAVA_HOME"); dir != "" {
		java, err = exec.LookPath(filepath.Join(dir, "bin", "java"))
	}
	if err != nil {
		return "", fmt.Errorf("java is not found: install Java %d or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME", minJava)
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w: %s", java, err, lastLines(string(out), 3))
	}
	return java, checkJava(java, string(out))
}

// checkJava reads what `java -version` prints.
func checkJava(java, printed string) error {
	m := javaVersion.FindStringSubmatch(printed)
	if m == nil {
		return fmt.Errorf("asking %s for its version: it says %q", java, lastLines(printed, 1))
	}
	major, err := strconv.Atoi(m[1])
	if err == nil && major == 1 { // 1.8 is 8
		major, err = strconv.Atoi(m[2])
	}
	if err != nil || major < minJava {
		return errors.New(java + " is Java " + m[1] + ", Kafka needs " + strconv.Itoa(minJava) + " or newer: install one, or set JAVA_HOME")
	}
	return nil
}
