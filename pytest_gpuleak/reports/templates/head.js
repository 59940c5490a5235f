// Before the page is laid out: what only opens by script is not laid out at all. Should the script fail, all is as without.
document.documentElement.classList.add("js");
addEventListener("error", () => document.documentElement.classList.remove("js"));
